"""What user code returns is checked before an executor would end its worker without a reason."""

import inspect
import re
from types import ModuleType

import pytest
import torch

from elasticflow.services.executor.worker.checkpoint import store
from elasticflow.services.executor.worker.engine import job_state, training_step
from elasticflow.services.executor.worker.engine.user_code_checks import (
    as_metrics,
    require_few_metrics,
    require_stateful,
)
from elasticflow.services.executor.worker.interface import TrainingFailed


@pytest.mark.parametrize("names", [range(257), (f"{n:0200d}" for n in range(100)), ("n" * 201,)])
def test_metrics_that_no_executor_takes_fail_the_job_with_a_reason(names: range) -> None:
    with pytest.raises(TrainingFailed, match="return fewer, with shorter names"):
        require_few_metrics({str(name): 0.0 for name in names})


def test_as_many_metrics_as_an_executor_takes_are_no_problem() -> None:
    require_few_metrics({f"{n:040d}": 0.0 for n in range(256)})


@pytest.mark.parametrize("name", ["", "lo\nss", "lo\udce9ss", "\x00"])
def test_a_name_that_no_message_can_hold_fails_the_job_with_a_reason(name: str) -> None:
    with pytest.raises(TrainingFailed, match="a name needs characters"):
        require_few_metrics({"loss": 0.0, name: 1.0})
    require_few_metrics({"précision à 5\u00a0%": 0.0})


def test_a_number_that_no_float_can_hold_is_named() -> None:
    with pytest.raises(TrainingFailed, match="return the loss, or a mapping of names to numbers"):
        as_metrics({"loss": 10**400})


def test_no_object_of_stateful_takes_the_name_of_the_owner_of_a_checkpoint() -> None:
    with pytest.raises(TrainingFailed, match=f'named "{store._OWNER}"'):
        require_stateful({store._OWNER: torch.nn.Linear(1, 1)})


@pytest.mark.parametrize("module", [job_state, training_step])
def test_no_object_of_stateful_takes_a_name_of_the_state(module: ModuleType) -> None:
    names = re.findall(r'^ {12}"(\w+)":', inspect.getsource(module), flags=re.MULTILINE)
    assert {"iteration", "optimizer_type"} & set(names), "the keys of state()"
    for name in names:
        with pytest.raises(TrainingFailed, match=f'named "{name}".*rename it'):
            require_stateful({name: torch.nn.Linear(1, 1)})
