"""Runs of jobs in a tracking service: what the sinks `MLflow` and `WeightsAndBiases` have in common.

The sink puts each iteration into a bounded queue and returns; a thread of the leading worker writes it to the job's
run. So a service that is slow, away or wrong holds no step and ends no job. What is queued is also in a file of the
job's folder, from which the next leader takes it over (docs/adr/0117).
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol

from elasticflow.shared.extras import require_extra
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.messages.job_spec import SCRIPT, TORCHRUN, JobSpec
from elasticflow.shared.runtime.process.clock import SystemClock, fresh_id
from elasticflow.shared.training_interface import OnStep, RunningJob, running_job

MAX_QUEUED = 10_000  # iterations that wait; of more, each second one is dropped
MAX_BATCH = 200  # iterations in one request
INTERVAL_S = 1.0  # between two requests
MOST_DELAY_S = 30.0  # between two attempts while the service is away
AT_END_S, ON_THE_WAY_S = 10.0, 3.0  # that a worker waits for what is queued: at the end of its job, and before
NUM_GPUS = "num_gpus"  # the metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The metrics of an iteration, and when they came."""

    at_s: float
    iteration: int
    metrics: Mapping[str, float]


class Refused(Exception):
    """The service takes no attempt with this content: it is not repeated."""


class Run(Protocol):
    """The run of a job, open in this process."""

    def write(self, points: Sequence[Point]) -> None:
        """Write them, in the order of their iterations; those that are there already change nothing. Raises Refused,
        and any other error if it is to be repeated."""
        ...

    def close(self, *, has_finished: bool) -> None:
        """has_finished: the job has; else another process goes on."""
        ...


class Tracker:
    """A sink that writes to the run of the job. extra: that installs the service's library. open_run: called in a
    thread, by the process that leads, and repeated after an error."""

    def __init__(self, extra: str, open_run: Callable[[RunningJob], Run]) -> None:
        if running_job() is not None:  # who submits the job needs no library
            require_extra(extra, type(self).__name__)
        self._open_run = open_run
        self._noted: tuple[int, dict[str, float]] = (0, {})
        self._sender: Sender | None = None

    def __call__(self, iteration: int, metrics: Mapping[str, float]) -> None:
        job = running_job()
        if job is None:
            raise RuntimeError(f"{type(self).__name__} is a sink of a job: only workers and local runs call it")
        noted_at, noted = self._noted
        shown = {**(noted if noted_at == iteration else {}), **metrics, NUM_GPUS: float(job.num_gpus)}
        point = Point(at_s=SystemClock().now_s(), iteration=iteration, metrics=shown)
        if self._sender is None or self._sender.job is not job or not self._sender.put(point):
            self._sender = Sender(job, self._open_run, type(self).__name__)
            self._sender.put(point)

    def note(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Add numbers to what is tracked of this iteration, before it is fed. Others are left out. A library's loop
        calls it on each worker, and only the leader's sink is called."""
        noted_at, noted = self._noted
        found = {name: float(value) for name, value in metrics.items() if is_number(value)}
        self._noted = iteration, {**(noted if noted_at == iteration else {}), **found}


def is_number(value: Any) -> bool:
    """Whether it is one, also as a tensor with one element."""
    return isinstance(value, int | float) or getattr(value, "numel", lambda: 0)() == 1


class Sender:
    """The queue of a job in this process, and the thread that empties it. It ends behind the job, or once another
    process leads."""

    def __init__(self, job: RunningJob, open_run: Callable[[RunningJob], Run], service: str) -> None:
        self.job = job
        self._open_run, self._service = open_run, service
        self._changed = threading.Condition()
        self._queued: list[Point] = []
        self._run: Run | None = None
        self._journal = Journal(job.folder / f"tracked-{service}-{job.identity or 'local'}")
        self._is_over = False  # nothing may be put any more
        self._ends = False  # the process does
        self._is_failing = self._has_refused = False
        self._num_lost = 0
        self._thread = threading.Thread(target=self._work, name=f"{service} of {job.job_id}", daemon=True)
        self._thread.start()
        atexit.register(self.end)

    def put(self, point: Point) -> bool:
        """Returns whether it is queued: not after the end."""
        with self._changed:
            if self._is_over:
                return False
            self._queued.append(point)
            self._journal.add([point])
            if len(self._queued) > MAX_QUEUED:
                self._thin_out()
            return True

    def end(self) -> None:
        """Wait for what is queued, but not for a service that has failed."""
        atexit.unregister(self.end)
        with self._changed:
            self._ends = True
            self._changed.notify()
        if not self._is_failing:
            self._thread.join(AT_END_S if self.job.has_finished else ON_THE_WAY_S)
        with self._changed:
            lost = self._num_lost + (len(self._queued) if self.job.has_finished else 0)
            self._num_lost = 0
        if lost:
            self._warn("the run lacks %s, which the service did not take in time", counted(lost, "iteration"))

    def _thin_out(self) -> None:
        """Keep the whole time: the older, the sparser."""
        before = len(self._queued)
        del self._queued[1::2]
        self._journal.clear()
        self._journal.add(self._queued)
        if not self._num_lost:
            self._warn("more than %d iterations wait for the service: each second one is dropped", MAX_QUEUED)
        self._num_lost += before - len(self._queued)

    def _work(self) -> None:
        delay_s = INTERVAL_S
        while True:
            left = self._journal.take_over()
            with self._changed:
                if left:
                    self._queued = sorted(left + self._queued, key=lambda point: point.iteration)
                self._changed.wait_for(lambda: self._ends, delay_s)
                batch, self._queued = self._queued[:MAX_BATCH], self._queued[MAX_BATCH:]
                if not batch:
                    self._journal.clear()
                if not batch and (self._ends or self.job.has_finished or not self.job.leads):
                    self._is_over = True
                    break
            delay_s = self._written(batch, delay_s) if batch else INTERVAL_S
            if self._is_failing and self._ends:
                return
        self._close()

    def _written(self, batch: list[Point], delay_s: float) -> float:
        """Write them, or queue them again. Returns the time until the next attempt."""
        try:
            if self._run is None:
                self._run = self._open_run(self.job)
                atexit.unregister(self.end)  # and again: the handlers of the service's library then follow this one
                atexit.register(self.end)
            self._run.write(batch)
        except Refused as error:
            if not self._has_refused:  # all others may be refused, too
                self._warn("the service refuses the iterations from %d on: %s", batch[0].iteration, error)
            self._has_refused = True
        except Exception as error:
            if not self._is_failing:
                self._warn("the training goes on, and its metrics wait: %s: %s", type(error).__name__, error)
            self._is_failing = True
            with self._changed:
                self._queued[:0] = batch
            return min(2 * delay_s, MOST_DELAY_S)
        if self._is_failing:
            self._warn("the metrics are written again")
        self._is_failing = False
        return 0.0 if len(batch) == MAX_BATCH else INTERVAL_S

    def _close(self) -> None:
        self._journal.delete()
        atexit.unregister(self.end)
        try:
            if self._run is not None:
                self._run.close(has_finished=self.job.has_finished)
        except Exception as error:
            self._warn("the run was not closed: %s: %s", type(error).__name__, error)

    def _warn(self, text: str, *values: object) -> None:
        logging.getLogger(__name__).warning(f"%s: {text}", self._service, *values)


# --- journal -------------------------------------------------------------------------------------------


class Journal:
    """The points of one process that its service may not have yet, in a file that outlives the process.

    The process holds a lock on it, which children do not inherit: a journal without its lock is of a process that is
    gone. On a disk that is full or has no locks, the points of such a process are lost.
    """

    _own: ClassVar[set[Path]] = set()  # a process has no lock against itself

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{fresh_id()}.jsonl"
        self._file = -1
        self._is_empty = True
        self._own.add(self._path)
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _lock(self._file)

    def add(self, points: Sequence[Point]) -> None:
        self._is_empty = False
        with suppress(OSError):
            os.write(self._file, "".join(f"{json.dumps(asdict(point))}\n" for point in points).encode())

    def clear(self) -> None:
        """The service has all of it."""
        if not self._is_empty:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
        self._is_empty = True

    def delete(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            os.close(self._file)
        self._file = -1

    def take_over(self) -> list[Point]:
        """The points of processes that are gone; they are in this journal from now on."""
        points: list[Point] = []
        others: list[Path] = []
        with suppress(OSError):
            others += (each for each in self._path.parent.glob("*.jsonl") if each not in self._own)
        for path in others:
            with suppress(OSError), path.open("r+b") as file:
                _lock(file.fileno())
                found = list(_points(file.read()))
                self.add(found)
                path.unlink()
                points += found
        return points


def _lock(file: int) -> None:
    """Raises OSError if another process holds it."""
    import fcntl  # here: who submits a job may have Windows

    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _points(written: bytes) -> Iterator[Point]:
    """A process may be killed within a line, or its disk be full."""
    for line in written.splitlines():
        with suppress(ValueError, TypeError):
            yield Point(**json.loads(line))


def with_trackers(on_step: OnStep | None, trackers: Sequence[Tracker]) -> tuple[OnStep | None, list[Tracker]]:
    """One sink of the job, and what to note in. trackers: in the place of what a library would report to."""
    sinks = [*([] if on_step is None else [on_step]), *trackers]
    return sink_of(sinks), [each for each in sinks if isinstance(each, Tracker)]


def sink_of(sinks: Sequence[OnStep]) -> OnStep | None:
    """One that calls each, also behind one that fails; None without any."""
    if len(sinks) < 2:
        return next(iter(sinks), None)

    def feed(iteration: int, metrics: Mapping[str, float]) -> None:
        errors: list[Exception] = []
        for sink in sinks:
            try:
                sink(iteration, metrics)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    return feed


# --- what a run says of its job ------------------------------------------------------------------------


def parameters_of(spec: JobSpec) -> dict[str, str]:
    """The hyperparameters, or the options of a script by name; what was swept; the batch, the iterations, the seed."""
    is_script = spec.entry in (SCRIPT, TORCHRUN)
    named = dict(_options(spec.arguments)) if is_script else {k: str(v) for k, v in spec.hyperparameters.items()}
    return {
        "global_batch_size": str(spec.global_batch_size),
        "max_iterations": str(spec.max_iterations),
        "seed": str(spec.seed),
        **named,
        **{name: str(value) for name, value in spec.swept.items()},
    }


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--lr 0.1`, `--lr=0.1` and `--fast` by name, and other arguments by number."""
    option = ""
    for number, argument in enumerate(arguments, start=1):
        is_option = argument.startswith("--")
        if option and (is_option or not argument):
            yield option, "true"
        if is_option:
            name, has_value, value = argument.lstrip("-").partition("=")
            option = "" if has_value else name
            if has_value:
                yield name, value
        else:
            yield option or f"argument_{number}", argument
            option = ""
    if option:
        yield option, "true"


def description_of(job: RunningJob) -> dict[str, str]:
    """What a run says of its job beside the parameters, by name."""
    spec = job.spec
    found = {
        "job": job.job_id,
        "identity": job.identity,
        "training_function": spec.training_function,
        "job_class": spec.job_class.value,
        "tenant": spec.owner,
        "sweep": spec.sweep,
        "continues": spec.continues.job_id if spec.continues is not None else "",
        "deadline": moment(job.deadline_s),
        "description": spec.description,
    }
    return {name: value for name, value in found.items() if value}


def moment(at_s: float | None) -> str:
    """As "2026-11-30T16:00:00+00:00"; "" for none."""
    return "" if at_s is None else datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
