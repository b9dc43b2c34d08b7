"""What a training function offers (ElasticFlow, Table 1), and how the worker finds it by name.

The users' base class, `elasticflow.ElasticJob`, fulfils this protocol; the worker does not import it.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import nn

from services.executor.worker.device import DeviceLost, is_lost
from services.executor.worker.groups import PeerLost, is_communication_error
from services.executor.worker.virtual_nodes import VirtualNodes, default_count
from shared.errors import Stop
from shared.messages.job import JobSpec, Scalar


@dataclass(eq=False)
class TrainingFailed(Stop):
    """The job cannot go on, for a reason that its user can read and mend."""

    reason: str

    SENTENCE: ClassVar[str] = "{reason}"


class Stateful(Protocol):
    """Part of a job's state: a model, an optimizer, a schedule."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class TrainingFunction(Protocol):
    hyperparameters: Mapping[str, Scalar]
    iteration: int  # steps done before this one, set before each call of train
    is_over: bool  # set by train: the job ends after this step
    evaluate_every: int  # iterations; 0: only at the end

    @property
    def data_workers(
        self,
    ) -> int: ...  # processes that read ahead for one worker; 0: it reads what is due itself

    shuffle: bool
    shuffle_window: int  # samples of data in partitions that are shuffled among each other
    reproducible: str  # "bitwise" or "fast"
    virtual_nodes: int  # 0: chosen by the batch
    find_unused_parameters: bool  # as of DistributedDataParallel

    def init_model(self) -> nn.Module: ...
    def init_dataset(self) -> Any: ...
    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...
    def train(self, batch: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any: ...
    def evaluate(self, model: nn.Module) -> Mapping[str, float]: ...
    def collate(self, samples: list[Any]) -> Any: ...


_WHERE_MODULES_ARE = (
    "; install it on the nodes, or put it into one package with your file: a package is sent whole"
)
_METHODS = ("init_model", "init_dataset", "init_optimizer", "train", "evaluate", "collate")


def load_training_function(spec: JobSpec, code_path: str) -> TrainingFunction:
    """An instance of the job's class, with its hyperparameters. Raises TrainingFailed if there is none."""
    if code_path:
        sys.path.insert(0, code_path)
    module_name, _, class_name = spec.training_function.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # a module may raise anything while it is imported
        what_to_do = _WHERE_MODULES_ARE if isinstance(error, ModuleNotFoundError) else ""
        raise TrainingFailed(
            f"cannot import {module_name}: {type(error).__name__}: {error}{what_to_do}"
        ) from error
    job_class = getattr(module, class_name, None)
    if job_class is None:
        raise TrainingFailed(f"module {module_name} has no class {class_name}")
    missing = [name for name in _METHODS if not callable(getattr(job_class, name, None))]
    if missing:
        raise TrainingFailed(f"{spec.training_function} lacks {', '.join(missing)}: subclass ElasticJob")
    job = cast(TrainingFunction, job_class())
    job.hyperparameters = {
        **job.hyperparameters,
        **spec.hyperparameters,
        "global_batch_size": spec.global_batch_size,
    }
    return job


def virtual_nodes_of(
    function: TrainingFunction, spec: JobSpec, world_size: int, micro_batch_size: int
) -> VirtualNodes:
    """How the job's batch is cut: for life, unless the fast mode cuts it anew for each number of workers."""
    cut = partial(VirtualNodes, global_batch_size=spec.global_batch_size, micro_batch_size=micro_batch_size)
    if function.reproducible == "fast":
        return cut(count=world_size)
    if function.reproducible != "bitwise":
        raise TrainingFailed(f'reproducible: must be "bitwise" or "fast", not {function.reproducible!r:.80}')
    count = function.virtual_nodes or default_count(spec.global_batch_size)
    if not 1 <= count <= spec.global_batch_size:
        raise TrainingFailed(
            f"virtual_nodes: must be from 1 to global_batch_size ({spec.global_batch_size}), not {count}"
        )
    return cut(count=count)


def checked_model(made: Any) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise TrainingFailed(f"init_model() must return a torch.nn.Module, not {_kind_of(made)}")
    return made


def checked_optimizer(made: Any) -> torch.optim.Optimizer:
    """Whatever has the methods of one will do."""
    if not (hasattr(made, "param_groups") and callable(getattr(made, "step", None))):
        raise TrainingFailed(
            f"init_optimizer() must return a torch.optim.Optimizer, not {_kind_of(made)}; "
            "for several optimizers, as of a GAN, return one with a parameter group for each"
        )
    return made


def _kind_of(made: Any) -> str:
    return "None" if made is None else f"a {type(made).__name__}"


@contextmanager
def in_users_code(where: str) -> Iterator[None]:
    """What is raised in here is the user's, and says where; unless it is a peer's loss that came up here."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if is_communication_error(error):
            raise PeerLost(f"a collective failed {where}: {error}") from error
        if is_lost(error):
            raise DeviceLost(str(error).partition("\n")[0]) from error
        error.add_note(where)
        raise


def as_metrics(returned: Any) -> dict[str, float]:
    """What `train` returned, as numbers by name, in the order of names."""
    values = returned if isinstance(returned, Mapping) else {"loss": returned}
    try:
        return {str(name): _as_float(value) for name, value in sorted(values.items())}
    except (TypeError, ValueError, RuntimeError) as error:
        raise TrainingFailed(
            f"train() returned {type(returned).__name__}: return the loss, or a mapping of names to numbers"
        ) from error


def _as_float(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)
