"""What a script iterates over: like its loader, but in the job's order, from the job's position on."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticflow.services.executor.worker.scripts.elastic_script import ElasticScript


class _Job:
    """What scripts and libraries ask about their job; the rest is as of their loader."""

    def __init__(self, script: "ElasticScript", loader: Any) -> None:
        self._script = script
        self._loader = loader

    def report(self, **metrics: float) -> None:
        """Report metrics of the trained model, e.g. from an evaluation behind the loop."""
        self._script.report(metrics)

    @property
    def iteration(self) -> int:
        """Optimizer steps that the job has done."""
        return self._script.position

    @property
    def iteration_in_epoch(self) -> int:
        """Steps of the present epoch before the present step."""
        return self._script.position - self._script.first_iteration_of_epoch

    def __len__(self) -> int:
        """Iterations of an epoch at most: without drop_last, a batch may begin in one epoch and end in the next."""
        return self._script.epochs.iterations(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Batches(_Job):
    """Parts of global batches: one pass of the script's loop for each."""

    def __iter__(self) -> Iterator[Any]:
        """The rest of the present epoch."""
        is_empty = True
        while self._script.wait_for_batch():
            is_empty = False
            yield self._script.take_batch()
            if self._script.epoch_is_over:
                return
        if is_empty:
            self._script.count_empty_loop()

    def epochs(self, count: int) -> Iterator[int]:
        """Numbers of epochs, from the present one on."""
        self._script.length.max_epochs = count
        while (epoch := self._script.epoch) < count and self._script.wait_for_batch():
            yield epoch


def enumerate_steps(iterable: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
    """Python's enumerate(), as a script finds it. Of the job's batches it counts steps of the epoch, not parts."""
    batches = getattr(iterable, "iterable", iterable)  # of a progress bar
    if not isinstance(batches, Batches):
        yield from enumerate(iterable, start)
        return
    for batch in iterable:
        yield start + batches.iteration_in_epoch, batch


class Steps(_Job):
    """Steps of the job: one pass of a library's loop for each. A step iterates over its parts in this process."""

    def __iter__(self) -> Iterator["Parts"]:
        """The rest of the present epoch."""
        while self._script.wait_for_batch():
            yield Parts(self._script)
            if self._script.epoch_is_over:
                return

    @property
    def epoch(self) -> int:
        """The present one."""
        return self._script.epoch

    @property
    def epochs_done(self) -> float:
        """With a part of the present one, unless its length is unknown."""
        try:
            return self._script.epochs.done(self._script.position)
        except TypeError:
            return float(self.epoch)

    def ends_after(self, *, max_steps: int | None = None, max_epochs: int | None = None) -> None:
        """The library's loop has this limit. Schedules are compared with it."""
        self._script.length.max_steps, self._script.length.max_epochs = max_steps, max_epochs

    @property
    def step_ends_epoch(self) -> bool:
        """Whether the present step has the last sample of its epoch."""
        return self._script.step_ends_epoch

    @property
    def has_ended(self) -> bool:
        """No step follows in the job."""
        return self._script.has_ended


class Parts:
    """Of one step. If a peer is lost between two of them, the parts of the repeated step follow."""

    def __init__(self, script: "ElasticScript") -> None:
        self._script = script

    def __iter__(self) -> Iterator[Any]:
        yield self._script.take_batch()
        while not self._script.is_last_part and self._script.wait_for_batch():
            yield self._script.take_batch()
