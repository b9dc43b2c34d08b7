"""Virtual worker processes and what they make up, the generations of jobs: `timing_model` moves them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from elasticflow.services.executor.decisions.local_events_and_actions import LocalEvent, WorkerId
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.simulator.timing.training_time import Progress, step_s

RunKey = tuple[str, int]  # job_id, generation


@dataclass(slots=True, kw_only=True, eq=False)
class Process:
    """One worker. say(note): to its executor.

    id: as its executor knows it; run, rank: where it is, which after a switch it has not yet said.
    """

    id: WorkerId
    gpu: GpuId
    say: Callable[[LocalEvent], None]
    run: "Run"
    rank: int
    has_joined: bool = False  # those of its run, if it began with it
    interrupted: bool = False  # its run is broken, and it knows
    stopping: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Meeting:
    """Workers that train, and newcomers to the run that they go over to. present: by place, those that know of it and
    can be reached."""

    size: int
    began_s: float
    incumbents: dict[int, Process] = field(default_factory=dict)  # by place
    present: dict[int, Process] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """All workers of one generation of one job; it trains once every rank has joined, or all are at the meeting."""

    key: RunKey
    spec: JobSpec
    world_size: int
    purpose: Literal["train", "profile"]
    iterations_per_s: float
    processes: dict[int, Process] = field(default_factory=dict)  # by rank, those that live
    meeting: Meeting | None = None
    started_at_s: float | None = None
    from_iteration: int = 0
    broken_at_s: float | None = None  # a member is gone, or all are: it never trains again
    stopping: bool = False

    @property
    def trained(self) -> bool:
        """Its workers hold the state of the job, or did."""
        return self.started_at_s is not None and self.purpose == "train"

    @property
    def broken(self) -> bool:
        return self.broken_at_s is not None

    def breaks(self, now_s: float) -> None:
        if self.broken_at_s is None:
            self.broken_at_s = now_s

    @property
    def step_s(self) -> float:
        """Seconds of a step: of its first one, and at most until its next step boundary."""
        return step_s(self.iterations_per_s)

    @property
    def trains(self) -> bool:
        return self.started_at_s is not None and not self.broken

    def iteration(self, now_s: float) -> int:
        if self.started_at_s is None:
            return self.from_iteration
        if self.broken_at_s is not None:
            now_s = self.broken_at_s
        progress = Progress(self.started_at_s, self.from_iteration, self.iterations_per_s)
        return min(self.from_iteration + progress.whole_steps(now_s), self.spec.max_iterations)


class Processes:
    """Those that live, each on a GPU of its own: that is asserted."""

    def __init__(self) -> None:
        self._by_gpu: dict[GpuId, Process] = {}

    def __len__(self) -> int:
        return len(self._by_gpu)

    def begin(self, process: Process) -> None:
        """It has its GPU from now on."""
        holder = self._by_gpu.get(process.gpu)
        assert holder is None, f"{process.id} and {holder and holder.id} both on {process.gpu}"
        self._by_gpu[process.gpu] = process

    def end(self, process: Process) -> None:
        """It is gone."""
        del self._by_gpu[process.gpu]

    def lives(self, process: Process) -> bool:
        return self._by_gpu.get(process.gpu) is process

    def known_as(self, worker: WorkerId) -> Process | None:
        """By the name that its executor has for it."""
        return next((process for process in self._by_gpu.values() if process.id == worker), None)

    def on(self, node_id: str) -> list[Process]:
        """Those of a node, in the order of their ids."""
        here = (process for process in self._by_gpu.values() if process.gpu.node_id == node_id)
        return sorted(here, key=lambda process: process.id)
