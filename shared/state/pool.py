"""What the ledger of one pool says, folded: nodes, jobs, scaling curves, shares and placements.

Every service folds the same events into this one value (`ledger_fold.evolve`) and decides on it. The maps are
persistent (`persistent_map`): a fold step costs the same with ten jobs and with a hundred thousand.
"""

# pyright: strict

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.events import QueuePosition
from elasticflow.shared.messages.gpus import GpuId, GpuLimits, ShareSchedule
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.load import Load
from elasticflow.shared.state.measured_curve import MeasuredCurve

# --- The submissions that selective admission learns its prices from -----------------------------------

DEMAND_CHUNK = 256  # submissions
MAX_DEMAND_CHUNKS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The newest submissions with a deadline, promised or not. Selective admission expects similar ones to come.

    A chunk holds at_s, the least GPU-seconds and the seconds to the deadline of each, one after another. Full chunks
    never change, so an addition costs the same after ten submissions and after ten thousand.
    """

    since_s: float | None = None  # the oldest submission
    full: tuple[tuple[float, ...], ...] = ()  # oldest first
    newest: tuple[float, ...] = ()

    def added(self, at_s: float, gpu_seconds: float, window_s: float) -> "Demand":
        """The demand with one more submission; the oldest are dropped."""
        newest = (*self.newest, at_s, gpu_seconds, window_s)
        since_s = at_s if self.since_s is None else self.since_s
        if len(newest) < 3 * DEMAND_CHUNK:
            return Demand(since_s=since_s, full=self.full, newest=newest)
        full = (*self.full[-(MAX_DEMAND_CHUNKS - 1) :], newest)
        return Demand(since_s=max(since_s, full[0][0]), full=full, newest=())


# --- Idle windows: how long GPUs carried no job, by the newest placements ------------------------------

MAX_IDLE_WINDOWS = 1_024
CARRIES_A_JOB = float("inf")  # instead of since when a GPU is idle


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWindows:
    """The lengths in seconds of the newest windows that ended, oldest first. num_ended: of all."""

    num_ended: int = 0
    newest_s: tuple[float, ...] = ()

    def added(self, lengths_s: Iterable[float]) -> "IdleWindows":
        """The windows with these added; the oldest are dropped. A window without a length is none."""
        more = tuple(length_s for length_s in lengths_s if length_s > 0.0)
        if not more:
            return self
        return IdleWindows(num_ended=self.num_ended + len(more), newest_s=(*self.newest_s, *more)[-MAX_IDLE_WINDOWS:])

    def ended_since(self, num_ended: int) -> tuple[float, ...]:
        """The windows after the first `num_ended` ones, as far as they are kept."""
        return self.newest_s[max(len(self.newest_s) - (self.num_ended - num_ended), 0) :]


# --- usage ---------------------------------------------------------------------------------------------
# What each tenant was promised, by GPU type. Quotas count over all types.


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What admission promised a tenant within one minute, or rejected. at_s: the time of the last one.

    gpu_seconds: on all types, for quotas count so. on_other_types: its parts on other types than the first.
    """

    at_s: float
    gpu_seconds: float
    num_jobs: int = 1
    on_other_types: Mapping[str, float] = field(default_factory=dict[str, float])

    @staticmethod
    def on(gpu_type: str, gpu_seconds: float, at_s: float, *, num_jobs: int = 1) -> "Usage":
        """All of it on one type, as recorded."""
        on_other_types = {gpu_type: gpu_seconds} if gpu_type and gpu_seconds else {}
        return Usage(at_s=at_s, gpu_seconds=gpu_seconds, num_jobs=num_jobs, on_other_types=on_other_types)


def gpu_hours_by_type(usage: Iterable[Usage], first_type: str) -> dict[str, float]:
    """The GPU-hours on each type that has some, by its name, the pool's first type first."""
    used = tuple(usage)
    hours = {first_type: sum(each.gpu_seconds for each in used) / 3_600.0}
    for each in used:
        for gpu_type, gpu_seconds in each.on_other_types.items():
            hours[gpu_type] = hours.get(gpu_type, 0.0) + gpu_seconds / 3_600.0
            hours[first_type] -= gpu_seconds / 3_600.0
    return {gpu_type: spent for gpu_type, spent in hours.items() if spent > 1e-9}


# --- pool ----------------------------------------------------------------------------------------------

# more than a busy pool decides in the seconds after which the work queue delivers a command again
MAX_DECIDED_COMMANDS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGpu:
    """A GPU on which a worker was slower than its peers. It counts as slow for `PoolConfig.slow_gpu_s`.

    slowdown: the worker's time for equal work, divided by the median of its peers'.
    job_id, generation: of the report. num_virtual_nodes: of the job; 0: unknown.
    reason: why it fails, by its driver; "": it was only slow.
    """

    gpu_index: int
    slowdown: float
    job_id: str
    generation: int
    since_s: float
    num_virtual_nodes: int = 0
    reason: str = ""


class NoticedEnd(NamedTuple):
    """The newest notice of a node's end, and what counts without it. until_s: None: the notice was withdrawn."""

    until_s: float | None
    at_s: float
    otherwise_until_s: float | None
    otherwise_announced_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node, as last reported by its executor and the monitor."""

    node_id: str
    incarnation: str
    num_gpus: int
    device: str
    alive: bool
    since_s: float
    left: bool = False  # its executor deregistered it
    sockets: int = 1
    rack: str = ""
    gpu_type: str = ""  # of all its GPUs; "": its executor named none
    gpu_memory_bytes: int = 0  # of each GPU; 0: unknown
    isolation: str = ""  # of its workers, as in `NodeJoined`
    until_s: float | None = None  # its announced end
    end_announced_s: float | None = None  # when the operator, or a notice, last announced or moved it
    notice: NoticedEnd | None = None  # of this incarnation
    draining: bool = False  # it leaves: its GPUs no longer count, and its jobs move
    workers_secret: str = ""  # a digest, as in `NodeJoined`
    unenforced: tuple[str, ...] = ()  # of the isolation, a sentence each
    slow_gpus: tuple[SlowGpu, ...] = ()  # some may have expired
    earlier_incarnations: tuple[str, ...] = ()  # newest first; their repeated joins are ignored
    started_by: str = ""  # as in `NodeJoined`
    data_folder: str = ""  # its name, as in `NodeJoined`
    separates_gpus: bool = False  # as in `NodeJoined`
    # when the incarnation before was last heard, or this one if it is lost; None: there is none, or unknown
    ended_s: float | None = None
    awaited: bool = False  # it may have ended unreported with other nodes: see awaited_nodes.py

    @property
    def takes_jobs(self) -> bool:
        """Whether its GPUs count: it is alive and not about to leave."""
        return self.alive and not self.draining


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedOnNode:
    """The highest speed of a job while it trained on one node alone, over that of its scaling curve."""

    job_id: str
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteReservation:
    """The GPUs reserved for a job until it is submitted, at most until until_s. Fields: see `QuoteReserved`."""

    job_id: str
    tenant: str
    spec: JobSpec
    deadline_s: float
    schedule: ShareSchedule
    gpu_seconds: float
    at_s: float
    until_s: float


# A command's `QueuePosition`, and the ledger's sequence of the decision on it: a plain tuple, which loads faster
DecidedCommand = tuple[int, float, int]


# immutables.Map() is typed Map[Any, Any] at best
_NO_JOBS = cast("Map[str, Job]", Map())
_NO_LOADS = cast("Map[str, Load]", Map())
_NO_NODES = cast("Map[str, NodeState]", Map())
_NO_CURVES = cast("Map[str, MeasuredCurve]", Map())
_NO_OWNERS = cast("Map[str, tuple[str, ...]]", Map())
_NO_QUOTES = cast("Map[str, QuoteReservation]", Map())
_NO_GPU_LIMITS = cast("Map[str, GpuLimits]", Map())
_NO_SIZES = cast("Map[str, int]", Map())
_NO_SECONDS = cast("Map[str, float]", Map())
_NO_COMMANDS = cast("Map[int, DecidedCommand]", Map())
_NO_TIMES = cast("Map[str, tuple[float, ...]]", Map())
_NO_USAGE = cast("Map[str, tuple[Usage, ...]]", Map())
_NO_DEMAND = cast("Map[str, Demand]", Map())
_NO_SPEEDS_ON_NODES = cast("Map[str, tuple[SpeedOnNode, ...]]", Map())


@dataclass(frozen=True, kw_only=True)  # not slotted: see `fast_replace`
class PoolState:
    """Everything that the ledger says up to `sequence`."""

    sequence: int = 0  # of the last folded message
    plan_sequence: int = 0  # of the last folded message of the plan: what compare-and-set expects
    unreadable_plan_sequence: int = 0  # of the last unreadable one that the operator has not skipped; 0: none
    config: PoolConfig = field(default_factory=PoolConfig)
    configured: bool = False
    nodes: Map[str, NodeState] = _NO_NODES
    num_gpus: int = field(init=False)  # of all nodes that take jobs; see `with_nodes`
    draining: frozenset[str] = field(init=False)  # nodes that are there and about to leave; see `with_nodes`
    speeds_on_nodes: Map[str, tuple[SpeedOnNode, ...]] = _NO_SPEEDS_ON_NODES  # the newest: see node_speeds.py
    gpu_types: tuple[str, ...] = ()  # named by nodes so far; the first is that of jobs and nodes that name none
    live_jobs: Map[str, Job] = _NO_JOBS
    ended_jobs: Map[str, Job] = _NO_JOBS  # the newest: see MAX_ENDED_JOBS in fold/jobs.py
    num_forgotten: int = 0  # ended jobs that are no longer kept here
    loads: Map[str, Load] = _NO_LOADS  # of padding; of those that ended the newest: see fold/loads.py
    # by job; some may have expired: see `quotes_at`
    quote_reservations: Map[str, QuoteReservation] = _NO_QUOTES
    gpu_limits: Map[str, GpuLimits] = _NO_GPU_LIMITS  # set by operators, by job
    curves: Map[str, MeasuredCurve] = _NO_CURVES
    profile_owners: Map[str, tuple[str, ...]] = _NO_OWNERS  # of the curves, by `JobSpec.profile_family`
    micro_batch_sizes: Map[str, int] = _NO_SIZES  # by profile, of jobs whose virtual nodes did not fit
    usage: Map[str, tuple[Usage, ...]] = _NO_USAGE  # by tenant, the last 24 hours, oldest first
    rejected_demand: Map[str, tuple[Usage, ...]] = _NO_USAGE  # of tenants with a quota: no promise came of it
    demand: Demand = field(default_factory=Demand)  # for GPUs of the first type
    demand_by_type: Map[str, Demand] = _NO_DEMAND  # for GPUs of the others
    idle_since_s: Map[str, tuple[float, ...]] = _NO_TIMES  # by node that is alive, of each GPU; or CARRIES_A_JOB
    idle_windows: IdleWindows = field(default_factory=IdleWindows)
    num_gpus_by_job: Mapping[str, int] = field(default_factory=dict[str, int])  # of the last allocation
    # of the same: by job that GPUs of other types join, and by type, the virtual nodes of each of its GPUs
    virtual_nodes_by_type: Mapping[str, Mapping[str, tuple[int, ...]]] = field(
        default_factory=dict[str, Mapping[str, tuple[int, ...]]]
    )
    # of the same: until when promises lend GPUs to profiling runs, by job; see `profiling_loans`
    lent_until_s: Mapping[str, float] = field(default_factory=dict[str, float])
    # from a placement to its first iteration, in recent starts; slow ones count more
    start_cost_s: float = 0.0
    start_costs: Map[str, float] = _NO_SECONDS  # the same by profile, of jobs that declare how long a start may take
    # the newest, by their sequence in the queue modulo MAX_DECIDED_COMMANDS
    decided_commands: Map[int, DecidedCommand] = _NO_COMMANDS
    scheduling_event_sequence: int = 0  # last event that can change who should get how many GPUs
    allocation_based_on: int = 0  # the sequence up to which the allocator had folded
    allocation_valid_until_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_gpus", num_gpus_of(self.nodes))
        object.__setattr__(self, "draining", draining_of(self.nodes))

    def job(self, job_id: str) -> Job | None:
        """A job by id, live or ended."""
        return self.live_jobs.get(job_id) or self.ended_jobs.get(job_id)

    def has_later_job(self, job: Job) -> bool:
        """Whether this job has ended, and a later one has taken its id."""
        now = self.job(job.job_id)
        return now is not None and now.identity != job.identity

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all jobs and padding loads that are known."""
        return (*self.live_jobs, *self.ended_jobs, *self.loads)

    def decision_on(self, position: QueuePosition) -> int | None:
        """The sequence of the decision on the command at this position; None if it has none, or a very old one."""
        decided = self.decided_commands.get(position.sequence % MAX_DECIDED_COMMANDS)
        return decided[2] if decided is not None and decided[:2] == position else None

    def idle_windows_at(self, now_s: float, *, least_open_s: float) -> list[float]:
        """The lengths in seconds of the newest idle windows, and of those that have not ended, until now_s.

        Of the latter only those of at least least_open_s: a shorter one may still grow to any length.
        """
        open_s = (now_s - since_s for node in self.idle_since_s.values() for since_s in node if since_s < CARRIES_A_JOB)
        return [*self.idle_windows.newest_s, *sorted(length_s for length_s in open_s if length_s >= least_open_s > 0.0)]

    def quotes_at(self, now_s: float) -> list[QuoteReservation]:
        """The reservations in force at now_s, the first to expire first."""
        in_force = (quote for quote in self.quote_reservations.values() if now_s < quote.until_s)
        return sorted(in_force, key=lambda quote: (quote.until_s, quote.job_id))


def profiling_jobs(live_jobs: Map[str, Job]) -> tuple[Job, ...]:
    """The jobs that wait for a throughput profile, the oldest first."""
    profiling = Phase.PROFILING  # looked up once: this passes over all jobs in each decision
    waiting = [job for job in live_jobs.values() if job.phase is profiling]
    return tuple(sorted(waiting, key=lambda job: (job.decided_sequence, job.job_id)))


def num_gpus_of(nodes: Map[str, NodeState]) -> int:
    """GPUs of the nodes that take jobs."""
    return sum(node.num_gpus for node in nodes.values() if node.takes_jobs)


def draining_of(nodes: Map[str, NodeState]) -> frozenset[str]:
    """The nodes that are there and about to leave."""
    return frozenset(node.node_id for node in nodes.values() if node.draining and node.alive)


def num_gpus_by_type(state: PoolState) -> dict[str, int]:
    """GPUs of the nodes that take jobs, by GPU type, in the order of the types' names."""
    counted = Counter[str]()
    for node in state.nodes.values():
        if node.takes_jobs:
            counted[node.gpu_type] += node.num_gpus
    return dict(sorted(counted.items()))


def rack_of(state: PoolState, node_id: str) -> str:
    """The path of a node's rack from the outside in: the pool's settings override what the node reports."""
    return state.config.racks.get(node_id, state.nodes[node_id].rack)


def with_nodes(state: PoolState, nodes: Map[str, NodeState]) -> PoolState:
    """The pool with other nodes. It counts their GPUs once, because every decision on a job reads the number."""
    return fast_replace(state, nodes=nodes, num_gpus=num_gpus_of(nodes), draining=draining_of(nodes))


def slow_gpu(state: PoolState, gpu: GpuId) -> SlowGpu | None:
    """The last report that this GPU is slow, however old; None if there is none."""
    node = state.nodes.get(gpu.node_id)
    slow = node.slow_gpus if node is not None else ()
    return next((each for each in slow if each.gpu_index == gpu.gpu_index), None)


def slow_until_s(state: PoolState, slow: SlowGpu) -> float:
    """When a GPU no longer counts as slow, unless it is reported again."""
    return slow.since_s + state.config.slow_gpu_s


def slow_gpus_at(state: PoolState, now_s: float) -> dict[GpuId, SlowGpu]:
    """The GPUs that count as slow at now_s."""
    return {
        GpuId(node.node_id, slow.gpu_index): slow
        for node in state.nodes.values()
        for slow in node.slow_gpus
        if node.takes_jobs and now_s < slow_until_s(state, slow)
    }


def spec_of(job: Job) -> JobSpec:
    """The spec of a live job, which always has one."""
    assert job.spec is not None, job.job_id
    return job.spec


def num_draining_gpus(state: PoolState) -> int:
    """GPUs of the nodes that are there and about to leave."""
    return sum(state.nodes[node_id].num_gpus for node_id in state.draining)


def largest_level(state: PoolState, spec: JobSpec) -> int:
    """The largest power of two of GPUs that this job can use here, limited by its batch and the pool.

    GPUs of nodes that are drained count, because jobs still make progress on them.
    """
    there = state.num_gpus + num_draining_gpus(state)
    if spec.gpus_per_replica > 1:
        there = num_gpus_in_gangs(state.nodes, spec.gpus_per_replica, state.draining)
    most = min(there, spec.most_gpus)
    return 1 << (most.bit_length() - 1) if most else 0


def num_gpus_in_gangs(nodes: Mapping[str, NodeState], gpus_per_replica: int, draining: Collection[str] = ()) -> int:
    """GPUs that can be parts of whole replicas, each on one node that takes jobs, or is one of `draining`."""
    counted = (node.num_gpus for node in nodes.values() if node.takes_jobs or node.node_id in draining)
    return sum(num_gpus // gpus_per_replica * gpus_per_replica for num_gpus in counted)
