"""Simulated worker processes and their runs, the generations of jobs. `virtual_runs` changes them."""

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
    """One worker. report(local_event): to its executor.

    id: as its executor knows it; run, rank: its actual ones, which it reports some time after a switch. begins_at_s:
    before, its node installs packages for it.
    """

    id: WorkerId
    gpu: GpuId
    report: Callable[[LocalEvent], None]
    run: "Run"
    rank: int
    begins_at_s: float = 0.0
    has_joined: bool = False  # its run, if it started with it
    interrupted: bool = False  # its run is broken, and it knows
    stopping: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Rendezvous:
    """Workers that train, and joining workers of the run to which they switch. staying, present: by rendezvous rank;
    present are those that have arrived.
    """

    size: int
    began_s: float
    staying: dict[int, Process] = field(default_factory=dict)
    present: dict[int, Process] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """All workers of one generation of one job. It trains once every rank has joined, or after a rendezvous."""

    key: RunKey
    spec: JobSpec
    world_size: int
    purpose: Literal["train", "profile"]
    iterations_per_s: float
    measures_step_times: bool = False
    processes: dict[int, Process] = field(default_factory=dict)  # by rank, those that live
    rendezvous: Rendezvous | None = None
    started_at_s: float | None = None
    from_iteration: int = 0
    broken_at_s: float | None = None  # a worker is gone, or all are: it never trains again
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
    """The running processes. Asserts that each has a GPU of its own."""

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
        """The process with this id, if it runs."""
        return next((process for process in self._by_gpu.values() if process.id == worker), None)

    def on(self, node_id: str) -> list[Process]:
        """The processes of a node, in the order of their ids."""
        here = (process for process in self._by_gpu.values() if process.gpu.node_id == node_id)
        return sorted(here, key=lambda process: process.id)
