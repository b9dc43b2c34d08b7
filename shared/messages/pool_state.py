"""What the ledger of one pool says, folded: jobs, nodes, curves, shares and placements.

Every service folds the same facts into this one value (`lifecycle.evolve`) and judges on it. The maps are
persistent (immutables.Map): a fold step costs the same with ten jobs and with a hundred thousand.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from immutables import Map

from shared.messages.cluster import GpuId, PoolConfig, ShareSchedule
from shared.messages.demand import Demand
from shared.messages.events import RejectionReason
from shared.messages.gpu_range import GpuBound, GpuRange
from shared.messages.job import JobClass, JobSpec
from shared.messages.offer import Offer
from shared.messages.remembered import remembered
from shared.messages.speed import UNSEEN, SpeedSeen


class Phase(StrEnum):
    """Where a job is in its life. The last five are ends: nothing follows them."""

    PROFILING = "profiling"  # its scaling curve is being measured, the decision is still open
    ADMITTED = "admitted"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    MEASURED = "measured"  # its speed was all that was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a tenant was promised within one minute, for its quota. at_s: the last of it."""

    at_s: float
    gpu_seconds: float
    num_jobs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingWorkers:
    """Workers of an older generation that have not yet been reported gone from a node."""

    generation: int
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The generation whose workers have the state of the job, and go over to the current one, or to the next if that is
    broken. Until it has started they train on; if some of them are lost, the others wait.

    gpus: in rank order. lost: those of them whose workers are gone. waiting: nobody is lost, they wait all the same.
    """

    generation: int
    gpus: tuple[GpuId, ...]
    lost: tuple[GpuId, ...] = ()
    waiting: bool = False

    @property
    def trains(self) -> bool:
        """Its workers take steps."""
        return not self.lost and not self.waiting

    @property
    def surviving(self) -> tuple[GpuId, ...]:
        """In rank order."""
        return tuple(gpu for gpu in self.gpus if gpu not in self.lost)


@dataclass(frozen=True, kw_only=True)  # not slotted: see `changed`
class Job:
    """One job, from its first decision to its end."""

    job_id: str
    tenant: str
    spec: JobSpec | None
    phase: Phase
    decided_at_s: float
    decided_sequence: int
    deadline_s: float | None = None
    submitted: JobSpec | None = None  # its spec before it was amended, or bounded
    only_measured: bool = False
    outdated: bool = False  # workers of the current generation know the spec of before
    minimum_satisfactory_share: ShareSchedule = ()  # as promised last: at admission, or amended
    planned_share: ShareSchedule = ()  # the newest schedule that keeps the promise
    explanation: str = ""  # of a rejection, failure or cancellation
    traceback: str = ""
    rejection: RejectionReason | None = None
    earliest_deadline_s: float | None = None  # offered with a rejection, or while it is at risk
    offers: tuple[Offer, ...] = ()  # all of them
    least_gpu_seconds: float = 0.0  # what its deadline asked for at least

    num_gpus: int = 0  # its share in the current allocation
    generation: int = 0
    gpus: tuple[GpuId, ...] = ()  # of the current generation, in rank order
    seat: tuple[GpuId, ...] = ()  # the whole share of survivors that go on with a part: kept for others
    placed_at_s: float = 0.0
    started_at_s: float | None = None  # when the current generation began to train, None before
    broken: bool = False  # the current generation lost a worker or node and cannot go on
    stopping: tuple[StoppingWorkers, ...] = ()  # fence: the current generation starts when this is empty
    predecessor: Predecessor | None = None  # while the job is handed over or broken, see decision record 0018
    rendezvous: str = ""  # host:port of the current generation
    micro_batch_size: int | None = (
        None  # samples that one pass takes; 0: a whole virtual node; None: not placed yet
    )

    iteration: int = 0
    checkpoint_iteration: int = 0
    checkpoint_request: int = 0  # sequence of the newest that has no answer yet; 0: none
    iterations_per_s: float | None = None
    progressed_at_s: float = 0.0
    speed: SpeedSeen = UNSEEN  # kept where promises are made with a confidence
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    restarts: int = 0  # crashes in a row without a step that nothing can take back
    survived_iteration: int = 0  # the newest from which survivors of a crash went on
    at_risk: bool = False
    at_risk_since_s: float | None = None  # when that was found last, also if it is over
    ended_at_s: float | None = None

    @property
    def live(self) -> bool:
        return self.phase in (Phase.PROFILING, Phase.ADMITTED)

    @property
    def training(self) -> bool:
        """All workers of the current generation take steps."""
        return self.started_at_s is not None and not self.broken and bool(self.gpus)

    @property
    def handed_over(self) -> bool:
        """Its workers train on while those of the current generation prepare."""
        return self.predecessor is not None and not self.broken

    @property
    def regroups(self) -> bool:
        """Its workers have lost some of theirs, and go over to the current generation before they take another step."""
        return self.handed_over and self.predecessor is not None and not self.predecessor.trains

    @property
    def training_generation(self) -> int | None:
        """Whose workers take steps; None if nobody's."""
        if self.predecessor is not None and not self.broken:
            return self.predecessor.generation if self.predecessor.trains else None
        return self.generation if self.training else None

    @property
    def promised(self) -> bool:
        """Its deadline is guaranteed."""
        return self.phase is Phase.ADMITTED and self.spec is not None and self.spec.job_class is JobClass.SLO

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the current generation, in rank order; then those that only its predecessor has."""
        gpus = self.gpus if self.predecessor is None else (*self.gpus, *self.predecessor.gpus)
        return nodes_of(gpus)


def nodes_of(gpus: Iterable[GpuId]) -> tuple[str, ...]:
    """In the order of their first GPU."""
    return tuple(dict.fromkeys(gpu.node_id for gpu in gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldQuote:
    """What is reserved for a job until it is submitted, or until until_s. Bounds: `QuoteHeld`."""

    job_id: str
    tenant: str
    spec: JobSpec
    deadline_s: float
    schedule: ShareSchedule
    gpu_seconds: float
    at_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGpu:
    """A GPU on which a worker was slower than its peers; it counts as slow for `PoolConfig.slow_gpu_s`.

    slowdown: its time for as many samples, by the median of theirs. Of which job and generation that was said.
    """

    gpu_index: int
    slowdown: float
    job_id: str
    generation: int
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node, as its executor and the monitor last said."""

    node_id: str
    incarnation: str
    num_gpus: int
    device: str
    alive: bool
    since_s: float
    left: bool = False  # it said good-bye
    sockets: int = 1
    rack: str = ""
    slow_gpus: tuple[SlowGpu, ...] = ()  # for some, the time may be over
    earlier_incarnations: tuple[str, ...] = ()  # newest first: their joining, told again, is old news


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """The scaling curve of a profile, as far as it is known: iterations/s by number of GPUs. See `fold_curves`."""

    iterations_per_s: Mapping[int, float]
    measured_at_s: Mapping[int, float] = field(default_factory=dict[int, float])  # by number of GPUs
    dataset_size: int | None = None
    complete: bool = False
    speed: SpeedSeen = UNSEEN  # of the jobs of this profile that ended
    parts: tuple[GpuRange, ...] = ()  # of it that are kept under keys of their own


# immutables.Map() is typed Map[Any, Any] at best; say once what the empty ones hold.
_NO_JOBS = cast("Map[str, Job]", Map())
_NO_NODES = cast("Map[str, NodeState]", Map())
_NO_CURVES = cast("Map[str, MeasuredCurve]", Map())
_NO_QUOTES = cast("Map[str, HeldQuote]", Map())
_NO_BOUNDS = cast("Map[str, GpuBound]", Map())
_NO_SIZES = cast("Map[str, int]", Map())
_NO_USAGE = cast("Map[str, tuple[Usage, ...]]", Map())


@dataclass(frozen=True, kw_only=True)  # not slotted: see `changed`
class PoolState:
    """Everything the ledger says up to `sequence`."""

    sequence: int = 0  # of the last folded message
    plan_sequence: int = 0  # of the last folded decision: what compare-and-set expects
    config: PoolConfig = field(default_factory=PoolConfig)
    configured: bool = False
    nodes: Map[str, NodeState] = _NO_NODES
    live_jobs: Map[str, Job] = _NO_JOBS
    ended_jobs: Map[str, Job] = _NO_JOBS  # the newest: see fold_jobs.MAX_ENDED_JOBS
    num_forgotten: int = 0  # ended jobs that are no longer kept here
    held_quotes: Map[str, HeldQuote] = _NO_QUOTES  # by job; some may be over: see `quotes_at`
    bounds: Map[str, GpuBound] = _NO_BOUNDS  # of operators, by job
    curves: Map[str, MeasuredCurve] = _NO_CURVES
    micro_batch_sizes: Map[str, int] = _NO_SIZES  # by profile, of jobs whose virtual nodes did not fit
    usage: Map[str, tuple[Usage, ...]] = _NO_USAGE  # by tenant, the last 24 hours, oldest first
    demand: Demand = field(default_factory=Demand)
    num_gpus_by_job: Mapping[str, int] = field(
        default_factory=dict[str, int]
    )  # the last allocation, as it was said
    start_cost_s: float = (
        0.0  # from a placement to its first iteration, as lately seen; slow starts count more
    )
    scheduling_event_sequence: int = 0  # last event that can change who should get how many GPUs
    allocation_based_on: int = 0  # what the last allocation had seen
    allocation_valid_until_s: float | None = None

    @property
    def profiling_jobs(self) -> tuple[Job, ...]:
        """Those that wait for their throughput profile, the oldest first."""
        return _profiling(self.live_jobs)

    def job(self, job_id: str) -> Job | None:
        """A job by id, live or ended."""
        return self.live_jobs.get(job_id) or self.ended_jobs.get(job_id)

    def quotes_at(self, now_s: float) -> list[HeldQuote]:
        """The quotes that are held at an instant, in the order of their ends."""
        held = (quote for quote in self.held_quotes.values() if now_s < quote.until_s)
        return sorted(held, key=lambda quote: (quote.until_s, quote.job_id))

    @property
    def num_gpus(self) -> int:
        """GPUs of the nodes that are alive."""
        return _num_gpus_alive(self.nodes)


_last_counted: tuple[Map[str, NodeState], int] = (_NO_NODES, 0)


def _num_gpus_alive(nodes: Map[str, NodeState]) -> int:
    """Counted once for each change of the nodes: it is asked for with every job, and maps are compared by identity."""
    global _last_counted
    if _last_counted[0] is not nodes:
        _last_counted = (nodes, sum(node.num_gpus for node in nodes.values() if node.alive))
    return _last_counted[1]


def slow_gpu(state: PoolState, gpu: GpuId) -> SlowGpu | None:
    """What was said of it last, however long ago."""
    node = state.nodes.get(gpu.node_id)
    slow = node.slow_gpus if node is not None else ()
    return next((each for each in slow if each.gpu_index == gpu.gpu_index), None)


def slow_gpus_at(state: PoolState, now_s: float) -> dict[GpuId, SlowGpu]:
    """Those that count as slow."""
    return {
        GpuId(node.node_id, slow.gpu_index): slow
        for node in state.nodes.values()
        for slow in node.slow_gpus
        if node.alive and now_s - slow.since_s < state.config.slow_gpu_s
    }


def spec_of(job: Job) -> JobSpec:
    """The spec of a live job, which always has one."""
    assert job.spec is not None, job.job_id
    return job.spec


@remembered
def _profiling(live_jobs: Map[str, Job]) -> tuple[Job, ...]:
    waiting = [job for job in live_jobs.values() if job.phase is Phase.PROFILING]
    return tuple(sorted(waiting, key=lambda job: (job.decided_sequence, job.job_id)))
