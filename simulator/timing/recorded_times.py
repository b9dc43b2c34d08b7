"""What a recorded ledger says of training time: the cost of each kind of change, and the speed of each model. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import (
    GenerationStarted,
    JobFinished,
    PlacedJob,
    PlacementDecided,
    PlanDecided,
    WorkersStopped,
)
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, ResizeCost
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.simulator.timing.training_time import SwitchTime, TrainingTime

Samples = Mapping[int, list[float]]  # seconds by number of GPUs


class _Placement(NamedTuple):
    at_s: float
    gpus: tuple[GpuId, ...]


class _Left(NamedTuple):
    job_id: str
    at_s: float


class _Since(NamedTuple):
    """A job has trained on these GPUs from this instant and iteration on."""

    at_s: float
    iteration: int
    generation: int
    gpus: tuple[GpuId, ...]


def _samples() -> defaultdict[int, list[float]]:
    return defaultdict(list)


@dataclass(kw_only=True)
class RecordedTimes:
    """Seconds of each change, by kind and number of GPUs, in the order of the record. A change that another one
    replaced before its first step is none.

    A change begins with its placement, or when the workers of other jobs have left its GPUs, if that is later.
    trained: by model and number of GPUs: iterations, and the seconds that they took.
    """

    first_start: defaultdict[int, list[float]] = field(default_factory=_samples)
    restart: defaultdict[int, list[float]] = field(default_factory=_samples)
    grow_prepare: defaultdict[int, list[float]] = field(default_factory=_samples)
    grow_stop: defaultdict[int, list[float]] = field(default_factory=_samples)
    shrink_prepare: defaultdict[int, list[float]] = field(default_factory=_samples)
    shrink_stop: defaultdict[int, list[float]] = field(default_factory=_samples)
    suspend: defaultdict[int, list[float]] = field(default_factory=_samples)
    trained: defaultdict[tuple[str, int], list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict[tuple[str, int], list[tuple[int, float]]](list)
    )

    def training_time(self) -> TrainingTime | None:
        """Medians. A kind that was not recorded takes as long as the nearest one; None without any start."""
        starts = self.first_start or self.restart
        if not starts:
            return None
        restart = _medians(self.restart or starts)
        grow = SwitchTime(prepare=_medians(self.grow_prepare, restart), stop=_medians(self.grow_stop))
        return TrainingTime(
            first_start=_medians(starts),
            restart=restart,
            grow=grow,
            shrink=SwitchTime(
                prepare=_medians(self.shrink_prepare, grow.prepare), stop=_medians(self.shrink_stop, grow.stop)
            ),
            suspend=_medians(self.suspend),
        )

    def iterations_per_s(self, model_name: str) -> Mapping[int, float]:
        """The mean speed of a model by number of GPUs, as far as it is recorded."""
        rates: dict[int, float] = {}
        for (name, num_gpus), parts in sorted(self.trained.items()):
            seconds = sum(part_s for _, part_s in parts)
            if name == model_name and seconds > 0:
                rates[num_gpus] = sum(iterations for iterations, _ in parts) / seconds
        return rates


def _medians(samples: Samples, otherwise: ResizeCost = FREE) -> ResizeCost:
    if not samples:
        return otherwise
    num_gpus_C = tuple(sorted(samples))
    return ResizeCost(num_gpus_C, tuple(median(samples[num_gpus]) for num_gpus in num_gpus_C))


def recorded_times(messages: Iterable[LedgerMessage]) -> RecordedTimes:
    """The times of all messages of a ledger."""
    reader = _Reader()
    for message in messages:
        reader.read(message)
    return reader.times


def fitted_to(messages: Iterable[LedgerMessage]) -> TrainingTime | None:
    """Every change takes as long as those of its kind in this record, in the median; None if it has no start."""
    return recorded_times(messages).training_time()


class _Reader:
    def __init__(self) -> None:
        self.times = RecordedTimes()
        self._models: dict[str, str] = {}  # by job
        self._placed: dict[tuple[str, int], _Placement] = {}  # generations that have not started
        self._gpus: dict[tuple[str, int], tuple[GpuId, ...]] = {}  # of all generations
        self._since: dict[str, _Since] = {}  # of jobs that train
        self._suspended_s: dict[tuple[str, int], float] = {}  # by job and generation
        self._left: dict[GpuId, _Left] = {}

    def read(self, message: LedgerMessage) -> None:
        match message:
            case PlanDecided(events=events, commands=commands):
                self._models |= {each.job_id: each.spec.model_name for each in commands if isinstance(each, SubmitJob)}
                for decided in events:
                    if isinstance(decided, PlacementDecided):
                        for placed in decided.placements:
                            self._place(placed, decided.at_s)
            case GenerationStarted():
                self._start(message)
            case WorkersStopped():
                self._leave(message)
            case JobFinished(job_id=job_id, iteration=iteration, at_s=at_s):
                self._train_until(job_id, iteration, at_s)
            case _:
                pass

    def _place(self, placed: PlacedJob, at_s: float) -> None:
        key = placed.job_id, placed.generation
        self._gpus[key] = placed.gpus
        if placed.gpus:
            self._placed[key] = _Placement(at_s, placed.gpus)
        elif (since := self._since.pop(placed.job_id, None)) is not None:
            self._suspended_s[placed.job_id, since.generation] = at_s

    def _start(self, started: GenerationStarted) -> None:
        job_id, resize, num_gpus = started.job_id, started.resize, started.num_gpus
        placement = self._placed.pop((job_id, started.generation), None)
        if placement is None:
            return
        before = self._since.pop(job_id, None)
        joining = set(placement.gpus).difference(before.gpus if before is not None else ())
        left = (self._left[gpu] for gpu in joining if gpu in self._left)
        begins_s = max((placement.at_s, *(each.at_s for each in left if each.job_id != job_id)))
        steps_s = started.at_s
        if resize is None:
            starts = self.times.restart if started.iteration else self.times.first_start
            starts[num_gpus].append(max(started.at_s - begins_s, 0.0))
        else:
            steps_s = started.at_s - resize.first_step_s  # it is reported after the first step
            stops_s = steps_s - resize.stop_s
            prepare, stop = (
                (self.times.grow_prepare, self.times.grow_stop)
                if joining
                else (self.times.shrink_prepare, self.times.shrink_stop)
            )
            prepare[num_gpus].append(max(stops_s - begins_s, 0.0))
            stop[num_gpus].append(resize.stop_s)
            if before is not None:
                self._since[job_id] = before
                self._train_until(job_id, started.iteration, stops_s)
        self._since[job_id] = _Since(steps_s, started.iteration, started.generation, placement.gpus)

    def _train_until(self, job_id: str, iteration: int, at_s: float) -> None:
        since = self._since.pop(job_id, None)
        if since is not None and job_id in self._models and at_s > since.at_s:
            trained = self.times.trained[self._models[job_id], len(since.gpus)]
            trained.append((iteration - since.iteration, at_s - since.at_s))

    def _leave(self, stopped: WorkersStopped) -> None:
        key = stopped.job_id, stopped.generation
        gpus = self._gpus.get(key, ())
        for gpu in gpus:
            if gpu.node_id == stopped.node_id:
                self._left[gpu] = _Left(stopped.job_id, stopped.at_s)
        suspended_s = self._suspended_s.get(key)
        if suspended_s is not None and gpus:
            self.times.suspend[len(gpus)].append(max(stopped.at_s - suspended_s, 0.0))
