"""Types that user code and workers pass to each other. Needs no torch: a client describes jobs without it."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elasticflow.shared.messages.job_spec import JobSpec

OnStep = Callable[[int, Mapping[str, float]], None]  # iteration: steps done; metrics: means over the global batch


class Stateful(Protocol):
    """An object whose state a job keeps: tensors and plain numbers. A model, an optimizer, a schedule."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


def is_stateful(each: Any) -> bool:
    """Whether it has both methods of `Stateful`."""
    return all(callable(getattr(each, method, None)) for method in ("state_dict", "load_state_dict"))


class WholeBatch(Protocol):
    """What a worker offers to its calls of train(), each of which has one part of the global batch."""

    def mean(self, value: Any, /) -> float: ...
    def gather(self, tensor: Any, /) -> Any: ...


_offered: list[WholeBatch] = []


@contextmanager
def offering(whole_batch: WholeBatch) -> Generator[None]:
    """Offer the whole batch in a worker, while it calls train()."""
    _offered.append(whole_batch)
    try:
        yield
    finally:
        _offered.pop()


def offered_whole_batch() -> WholeBatch | None:
    """The whole batch that the worker offers; None outside of train(), and outside of a job."""
    return _offered[-1] if _offered else None


# --- the running job -----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RunningJob:
    """The job that this process works for, as it is now: a sink names its run by it.

    identity: as `Job.identity`; "": a local run. deadline_s: as it was when this process got the job. folder: of the
    job, on storage that its nodes share. num_gpus: of the job now; 0: it does not train yet. leads: this process calls
    the sink. has_finished: the last iteration was fed.
    """

    job_id: str
    identity: str
    spec: JobSpec
    deadline_s: float | None
    folder: Path
    num_gpus: int = 0
    leads: bool = False
    has_finished: bool = False


_running: list[RunningJob] = []


def show_job(job: RunningJob | None) -> None:
    """Show it to the sinks of this process, instead of the one before; None: it has ended here."""
    _running[:] = [] if job is None else [job]


def running_job() -> RunningJob | None:
    """The job of this process; None outside of workers and local runs."""
    return _running[-1] if _running else None
