"""Simulated worker processes and their runs, the generations of jobs. `virtual_runs` changes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from elasticflow.services.executor.decisions.local_events_and_actions import LocalEvent, WorkerId
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.measurements import SingleGpuStepTimes, counts_to_measure
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.timing.training_time import RatedProgress, TrainingTime, step_s, true_rate

RunKey = tuple[str, int]  # job_id, generation


@dataclass(slots=True, kw_only=True, eq=False)
class VirtualProcess:
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
    staying: dict[int, VirtualProcess] = field(default_factory=dict)
    present: dict[int, VirtualProcess] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """All workers of one generation of one job. It trains once every rank has joined, or after a rendezvous."""

    key: RunKey
    spec: JobSpec
    world_size: int
    purpose: Literal["train", "profile"]
    iterations_per_s: float
    gpu_types: tuple[str, ...] = ()  # by rank
    virtual_nodes: tuple[int, ...] = ()  # by rank; empty: as many on each
    measures_step_times: bool = False
    most_virtual_nodes: int = 0  # as in its assignments
    processes: dict[int, VirtualProcess] = field(default_factory=dict)  # by rank, those that live
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
        progress = RatedProgress(self.started_at_s, self.from_iteration, self.iterations_per_s)
        return min(self.from_iteration + progress.whole_steps(now_s), self.spec.max_iterations)


class Processes:
    """The running processes. Asserts that each has a GPU of its own."""

    def __init__(self) -> None:
        self._by_gpu: dict[GpuId, VirtualProcess] = {}

    def __len__(self) -> int:
        return len(self._by_gpu)

    def begin(self, process: VirtualProcess) -> None:
        """It has its GPU from now on."""
        holder = self._by_gpu.get(process.gpu)
        assert holder is None, f"{process.id} and {holder and holder.id} both on {process.gpu}"
        self._by_gpu[process.gpu] = process

    def end(self, process: VirtualProcess) -> None:
        """It is gone."""
        del self._by_gpu[process.gpu]

    def lives(self, process: VirtualProcess) -> bool:
        return self._by_gpu.get(process.gpu) is process

    def known_as(self, worker: WorkerId) -> VirtualProcess | None:
        """The process with this id, if it runs."""
        return next((process for process in self._by_gpu.values() if process.id == worker), None)

    def on(self, node_id: str) -> list[VirtualProcess]:
        """The processes of a node, in the order of their ids."""
        here = (process for process in self._by_gpu.values() if process.gpu.node_id == node_id)
        return sorted(here, key=lambda process: process.id)


# --- How long things take in the simulated pool, and how fast jobs really are --------------------------

START = TrainingTime.of_cost(ResizeCost.flat(1.0), stop_s=0.02)


class Slowness(NamedTuple):
    """A GPU takes so many times as long for equal work, in runs that begin before until_s of the virtual clock."""

    slowdown: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingModel:
    """true_curves: iterations/s by profile and number of GPUs; in between, those of the next smaller number.

    num_virtual_nodes: of each job, which computes them in the fast mode.
    bitwise_virtual_nodes: that a profiling run measures; 0: none, because all jobs compute in the fast mode.
    slow_profiles_s: seconds of each profiling run of a profile that takes longer than others; inf: it hangs.
    """

    true_curves: Mapping[str, Mapping[int, float]]
    num_virtual_nodes: int = 16
    bitwise_virtual_nodes: int = 0
    dataset_size: int = 1 << 20  # samples
    listen_s: float = 0.1  # from rank 0's process to its open port
    training: TrainingTime = START  # restart: from the last worker that joins to the first step
    stop_s: float = 0.1  # for the checkpoint at the boundary
    profile_s: float = 0.6
    slow_gpus: Mapping[GpuId, Slowness] = field(default_factory=dict[GpuId, Slowness])  # in training runs
    straggler_after_s: float = 10.0  # from the first step to the report of a straggler, and from one to the next
    slow_profiles_s: Mapping[str, float] = field(default_factory=dict[str, float])
    checkpoint_every_s: float = 5.0
    snapshot_every: int = 100  # messages of the ledger
    report_every_s: float = 0.5
    install_s: float = 0.0  # from the order to start a worker until the packages that its job requires are there
    give_up_s: float = 10.0  # a worker ends if its peers do not join by then, or by the end of their installation
    peer_lost_s: float = 0.05
    leave_s: float = 0.05  # from the switch to the end of the leaving workers


# --- How fast runs of the simulated pool really are, on GPUs of one type or of several -----------------
# The computation of one GPU is proportional to its virtual nodes. Communication is the rest of a step on several
# GPUs, by the curve of its type. The slowest GPU makes the step.


class TrueSpeeds:
    """gpu_type_by_node: as the nodes name their types; "" stands for a type without a name."""

    def __init__(self, timing_model: TimingModel, gpu_type_by_node: Mapping[str, str]) -> None:
        self._timing, self._gpu_type_by_node = timing_model, gpu_type_by_node
        self._recorded = dict[str, str]()

    def launched(self, spec: JobSpec, node_id: str) -> None:
        """A worker of a run on GPUs of one type starts on this node: its spec tells how the ledger names the type."""
        self._recorded.setdefault(self.type_of(node_id), spec.gpu_type)

    def type_of(self, node_id: str) -> str:
        return self._gpu_type_by_node.get(node_id, "")

    def iterations_per_s(
        self,
        spec: JobSpec,
        gpu_types: tuple[str, ...],
        virtual_nodes: tuple[int, ...],
        slowdowns: tuple[float, ...] = (),
    ) -> float:
        """gpu_types, slowdowns: of each worker. virtual_nodes: the same; empty: as many on each."""
        if len(set(gpu_types)) == 1 and not virtual_nodes and not slowdowns:
            return true_rate(self._curve(spec, gpu_types[0]), len(gpu_types))
        counts = virtual_nodes or (self._largest_part(len(gpu_types)),) * len(gpu_types)
        communication_s = {each: self._communication_s(spec, each, len(gpu_types)) for each in set(gpu_types)}
        return 1.0 / max(
            slowdown * self._one_gpu_s(spec, gpu_type, count) + communication_s[gpu_type]
            for gpu_type, count, slowdown in zip(gpu_types, counts, slowdowns or (1.0,) * len(counts), strict=True)
        )

    def single_gpu(self, spec: JobSpec, gpu_type: str) -> SingleGpuStepTimes:
        """What a profiling run on one GPU measures."""
        num_virtual_nodes = self._timing.num_virtual_nodes
        step_s = {count: self._one_gpu_s(spec, gpu_type, count) for count in counts_to_measure(num_virtual_nodes)}
        return SingleGpuStepTimes(
            num_virtual_nodes=num_virtual_nodes, step_s_by_virtual_nodes=step_s, reproducible="fast"
        )

    def _curve(self, spec: JobSpec, gpu_type: str) -> Mapping[int, float]:
        on_type = replace(spec, gpu_type=self._recorded.get(gpu_type, spec.gpu_type))
        return self._timing.true_curves[on_type.configured_key]

    def _one_gpu_s(self, spec: JobSpec, gpu_type: str, count: int) -> float:
        """A worker without virtual nodes computes one of another worker again."""
        return max(count, 1) / self._timing.num_virtual_nodes / true_rate(self._curve(spec, gpu_type), 1)

    def _communication_s(self, spec: JobSpec, gpu_type: str, num_gpus: int) -> float:
        """That of the next larger number of GPUs in the curve; of the largest, if there is none."""
        curve = self._curve(spec, gpu_type)
        level = min((level for level in curve if level >= num_gpus), default=max(curve))
        alone_s = self._one_gpu_s(spec, gpu_type, self._largest_part(level))
        return max(1.0 / curve[level] - alone_s, 0.0) if level > 1 else 0.0

    def _largest_part(self, num_gpus: int) -> int:
        return -(-self._timing.num_virtual_nodes // num_gpus)
