"""User scripts: `elastic` lets workers join and leave a script's training loop; `Script` submits the script.

Importing this imports no torch.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elasticflow.errors import InvalidJob
from elasticflow.sdk.job import ElasticJob
from elasticflow.shared.messages.job_environment import SCRIPT_PROCESS_VARIABLE
from elasticflow.shared.messages.job_spec import TORCHRUN, JobSpec
from elasticflow.shared.training_interface import OnStep, is_stateful

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_WORKER = "__elastic_worker__"  # set in the script's main module by the worker that runs it


class ElasticLoader(Protocol):
    """Iterates like the loader that it wraps, and has its other attributes."""

    def __iter__(self) -> Iterator[Any]:
        """Batches up to the end of the current epoch."""
        ...

    def __len__(self) -> int: ...

    def epochs(self, count: int) -> Iterator[int]:
        """Epoch numbers below `count`, from the job's current epoch."""
        ...

    def report(self, **metrics: float) -> None:
        """Metrics of the trained model, for the job's end."""
        ...

    @property
    def iteration(self) -> int:
        """Optimizer steps of the job so far."""
        ...


def elastic(
    loader: Any,
    model: nn.Module,
    optimizer: Optimizer,
    *further: Any,
    virtual_nodes: int = 0,
    on_step: OnStep | None = None,
) -> ElasticLoader:
    """Make a script's training elastic: iterate over the returned loader instead of `loader`.

        loader = elasticflow.elastic(loader, model, optimizer, scheduler)
        for epoch in loader.epochs(20):
            for batch in loader:
                ...  # loss.backward(), clip, optimizer.step(), scheduler.step(): as for one device

    loader: a `DataLoader` of a data set as `ElasticJob.init_dataset` returns; the job's global batch size replaces its
        batch size. Its sampler, drop_last and collate_fn are kept; what a job cannot keep, such as a batch_sampler,
        fails the job at once.
    further: other state that survives a resize, with `state_dict()` and `load_state_dict()`, e.g. a schedule.
        An object without these methods raises TypeError.
    virtual_nodes: fixed parts of a global batch, thus the most useful GPUs; 0: measured.
    on_step: called with each iteration of the job and its metrics, once, in one process; see `ElasticJob.on_step`.

    A worker runs the loop once for each of its virtual nodes. The code after the loop runs in one process. In a
    script that runs outside a job, this changes nothing.
    """
    require_state("elastic()", further)
    worker = running_worker()
    if worker is None:
        return _PlainLoader(loader, optimizer)
    return worker.attach(loader, model, optimizer, *further, virtual_nodes=virtual_nodes, on_step=on_step)


def require_state(call: str, further: Iterable[object]) -> None:
    """Raise TypeError for an object whose state nobody can read and set. call: that got it, with ()."""
    for each in further:
        if not is_stateful(each):
            raise TypeError(
                f"{call}: {type(each).__name__} needs state_dict() and load_state_dict(): add both methods, so that "
                "workers that join and checkpoints have its state"
            )


def running_worker() -> Any:
    """The worker that runs this script; None outside a job. Raises RuntimeError in a child process of the script."""
    if os.environ.get(SCRIPT_PROCESS_VARIABLE, own := str(os.getpid())) != own:
        raise RuntimeError(
            "elastic() was called in a process that the script has started, e.g. by torch.multiprocessing.spawn: call "
            "it in the script's own process, as main(rank=0, world_size=1), since the job adds workers by itself"
        )
    return getattr(sys.modules["__main__"], _WORKER, None)


class _PlainLoader:
    """The loader of a script that runs outside a job."""

    def __init__(self, loader: Any, optimizer: Optimizer) -> None:
        self._loader = loader
        self.iteration = 0
        optimizer.register_step_post_hook(self._count)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def _count(self, *_: Any) -> None:
        self.iteration += 1

    def __len__(self) -> int:
        return len(self._loader)

    def epochs(self, count: int) -> Iterator[int]:
        return iter(range(count))

    def report(self, **metrics: float) -> None:
        print(*(f"{name}={value:.6g}" for name, value in metrics.items()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Script(ElasticJob):
    """A job that runs a script which calls `elastic`. target: "path/to/train.py", or "package.module:__main__" if the
    nodes can import it. arguments: the script's command line.

        job = Script("train.py", "--epochs", "20").set_hyperparameter(global_batch_size=256)
        elasticflow.submit(job.term_condition(max_iterations=2000).set_deadline(within=600))
    """

    _KNOWN = frozenset({"global_batch_size"})  # hyperparameters that are not arguments of the script

    def __init__(self, target: str | Path, *arguments: str) -> None:
        self.target = str(target)
        self.arguments = arguments

    def spec(self, *, training_function: str = "", code_digest: str = "") -> JobSpec:
        if settings := sorted(set(self.hyperparameters) - self._KNOWN):
            raise InvalidJob(
                f"hyperparameters: a script gets its settings ({', '.join(settings)}) as arguments, after --"
            )
        job = copy.copy(self)
        numbered = {str(number): argument for number, argument in enumerate(self.arguments, start=1)}
        job.hyperparameters = {**self.hyperparameters, **numbered}
        job.speed_neutral = (*self.speed_neutral, *self._neutral_arguments())
        return ElasticJob.spec(job, training_function=training_function or self.target, code_digest=code_digest)

    def _neutral_arguments(self) -> Iterator[str]:
        """The numbers of arguments that change no speed: the value of `--lr`, or `--lr=0.1`."""
        option = ""
        for number, argument in enumerate(self.arguments, start=1):
            name, has_value, _ = argument.partition("=")
            named = name.lstrip("-").replace("-", "_") if name.startswith("-") else ""
            if option in self.speed_neutral or (has_value and named in self.speed_neutral):
                yield str(number)
            option = "" if has_value else named


class TorchrunScript(Script):
    """A job that runs an unchanged script; its workers start as under `torchrun` and restart at each resize.

    target: as of a Script. The script saves its own snapshots in its working directory.
    hyperparameter batch_per_worker: samples of each worker in an optimizer step, if that does not depend on the number
    of workers. An iteration of the job is then global_batch_size samples.
    """

    _KNOWN = Script._KNOWN | {"batch_per_worker"}

    def __init__(self, target: str | Path, *arguments: str) -> None:
        super().__init__(f"{str(target).removesuffix(f':{TORCHRUN}')}:{TORCHRUN}", *arguments)

    def warning(self) -> str:
        """About a file that saves no snapshot by its own words; "" for others, whose modules may save some."""
        file = Path(self.target.removesuffix(f":{TORCHRUN}"))
        if file.suffix != ".py" or not file.is_file() or b"save" in file.read_bytes():
            return ""
        return (
            f"{file.name} saves no snapshot: a change of its GPUs, or a crash, starts it from the beginning. "
            "Save with torch.save and load at the start, or fix its number of GPUs with --gpus N"
        )
