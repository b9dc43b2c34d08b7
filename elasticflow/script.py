"""A training script of one's own: `elastic` makes its loop one that workers may join and leave; `Script` submits it.

Importing this imports no torch.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elasticflow.job import ElasticJob, InvalidJob
from shared.messages.job import TORCHRUN, JobSpec

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_WORKER = "__elastic_worker__"  # left in the script's main module by the worker that runs it


class ElasticLoader(Protocol):
    """Iterated over like the loader that it was made from, which has all other attributes."""

    def __iter__(self) -> Iterator[Any]:
        """Batches up to the end of the present epoch."""
        ...

    def __len__(self) -> int: ...

    def epochs(self, count: int) -> Iterator[int]:
        """Numbers of epochs up to `count`, from the one in which the job is."""
        ...

    def report(self, **metrics: float) -> None:
        """Metrics of the trained model, for the job's end."""
        ...

    @property
    def iteration(self) -> int:
        """Optimizer steps done, by whichever workers."""
        ...


def elastic(
    loader: Any, model: nn.Module, optimizer: Optimizer, *further: Any, virtual_nodes: int = 0
) -> ElasticLoader:
    """Let a script's training be an elastic job: loop over what this returns instead of over `loader`.

        loader = elasticflow.elastic(loader, model, optimizer, scheduler)
        for epoch in loader.epochs(20):
            for batch in loader:
                ...  # loss.backward(), clip, optimizer.step(), scheduler.step(): as for one device

    loader: a `DataLoader` of a map-style data set; its batch size gives way to the job's global one.
    further: what else outlives a change of workers, with `state_dict()` and `load_state_dict()`, e.g. a schedule.
    virtual_nodes: fixed parts of a global batch, so most GPUs of use; 0: up to 8, by the batch.

    The loop is passed through once for each virtual node that a worker carries, and what comes after it runs in one
    process. In a script that nobody has submitted, this changes nothing.
    """
    worker = getattr(sys.modules["__main__"], _WORKER, None)
    if worker is None:
        return _Alone(loader)
    return worker.attach(loader, model, optimizer, *further, virtual_nodes=virtual_nodes)


class _Alone:
    """The loader itself: nobody joins, nobody leaves."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.iteration = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield batch
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
    """A script that calls `elastic`, as a job. target: "path/to/train.py", or "package.module:__main__" where the nodes
    can import it. arguments: of its command line.

        job = Script("train.py", "--epochs", "20").set_hyperparameter(global_batch_size=256)
        elasticflow.submit(job.term_condition(max_iterations=2000).set_deadline(within=600))
    """

    _KNOWN = frozenset({"global_batch_size"})  # hyperparameters that are not the script's

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
        return ElasticJob.spec(
            job, training_function=training_function or self.target, code_digest=code_digest
        )


class TorchrunScript(Script):
    """A script as it is, each of its workers started as under `torchrun`; they begin anew when their number changes.

    target: as of a Script. It keeps its own snapshots, with `torch.save`, in its working directory.
    hyperparameter batch_per_worker: samples of each worker in a step of its optimizer, if that does not depend on
    their number; an iteration of the job is then global_batch_size samples, and a step what the workers have together.
    """

    _KNOWN = Script._KNOWN | {"batch_per_worker"}

    def __init__(self, target: str | Path, *arguments: str) -> None:
        super().__init__(f"{str(target).removesuffix(f':{TORCHRUN}')}:{TORCHRUN}", *arguments)
