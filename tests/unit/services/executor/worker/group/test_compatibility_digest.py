"""Workers that differ are refused before any tensor travels, with all differences; other drivers are only named."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from elasticflow.services.executor.worker.group import compatibility_digest as module
from elasticflow.services.executor.worker.group.compatibility_digest import compatibility_digest, require_compatible
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.messages.job_environment import OwnEnvironment
from elasticflow.shared.messages.job_spec import JobSpec


def digest(
    model: nn.Module, *, reproducible: str = "bitwise", own_environment: OwnEnvironment | None = None
) -> dict[str, str]:
    function = SimpleNamespace(hyperparameters={}, reproducible=reproducible, virtual_nodes=8)
    spec = JobSpec(training_function="jobs:Job", global_batch_size=8, max_iterations=1, deadline_in_s=60.0)
    spec = replace(spec, own_environment=own_environment)
    return compatibility_digest(function, spec, model, torch.optim.SGD(model.parameters(), lr=0.1), {}, "10")


def compiled() -> nn.Module:
    model = nn.Linear(2, 2)
    model.compile()
    return model


def test_another_release_of_torch_is_named():
    mine = digest(nn.Linear(2, 2))
    with pytest.raises(TrainingFailed, match=r"torch: .* here, 2\.0\.0 there; install the same code, data and release"):
        require_compatible(mine, mine | {"torch": "2.0.0"})


def test_another_release_of_numpy_is_named_and_another_python_of_an_environment():
    mine = digest(nn.Linear(2, 2))
    assert "Python" not in mine, "the nodes' own may differ"
    with pytest.raises(TrainingFailed, match=r"numpy: .* here, 1\.26\.4 there; .* releases of torch and numpy on all"):
        require_compatible(mine, mine | {"numpy": "1.26.4"})
    own = digest(nn.Linear(2, 2), own_environment=OwnEnvironment())
    with pytest.raises(TrainingFailed, match=r"Python: 3\.\d+ here, 3\.9 there"):
        require_compatible(own, own | {"Python": "3.9"})


def test_another_driver_is_named_in_the_log_only(monkeypatch):
    monkeypatch.setattr(module, "driver_version", lambda: "610.12")
    mine = digest(nn.Linear(2, 2))
    with capture_logs() as logs:
        require_compatible(mine, mine | {"driver": "580.95"})
    assert [(entry["event"], entry["versions"]) for entry in logs] == [
        ("drivers_differ", "driver: 610.12 here, 580.95 there")
    ]


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of the compiler's import
@pytest.mark.parametrize("compiled_model", [compiled, lambda: torch.compile(nn.Linear(2, 2))])
def test_a_compiled_model_needs_the_same_kind_of_processor(monkeypatch, compiled_model):
    """The bits of its kernels follow from it; the fast mode promises none."""
    here, fast_here, plain_here = (
        digest(compiled_model()),
        digest(compiled(), reproducible="fast"),
        digest(nn.Linear(2, 2)),
    )
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ANOTHER")
    with pytest.raises(TrainingFailed, match=r'compiled for: .* here, ANOTHER there.*set reproducible = "fast"'):
        require_compatible(here, digest(compiled_model()))
    require_compatible(fast_here, digest(compiled(), reproducible="fast"))
    require_compatible(plain_here, digest(nn.Linear(2, 2)))
