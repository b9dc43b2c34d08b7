"""What the ledger of one pool says, folded: jobs, nodes, curves, shares and placements.

Every service folds the same facts into this one value (`lifecycle.evolve`) and judges on it. The maps are
persistent (immutables.Map): a fold step costs the same with ten jobs and with a hundred thousand.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from immutables import Map

from shared.messages.cluster import GpuId, PoolConfig, ShareSchedule
from shared.messages.demand import Demand
from shared.messages.gpu_range import GpuBound, GpuRange
from shared.messages.job import JobSpec
from shared.messages.job_state import Job, Phase
from shared.messages.node_state import NodeState, SlowGpu
from shared.messages.remembered import remembered
from shared.messages.speed import UNSEEN, SpeedSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a tenant was promised within one minute, for its quota. at_s: the last of it."""

    at_s: float
    gpu_seconds: float
    num_jobs: int = 1


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
class MeasuredCurve:
    """The scaling curve of a profile, as far as it is known: iterations/s by number of GPUs. See `fold_curves`.

    tried_to: the most GPUs on which it was measured or tried; inf: more would not help; 0: its pre-run is not over.
    tried_at_s: when a job last began to train on more than were measured.
    """

    iterations_per_s: Mapping[int, float]
    measured_at_s: Mapping[int, float] = field(default_factory=dict[int, float])  # by number of GPUs
    dataset_size: int | None = None
    tried_to: float = 0.0
    tried_at_s: float = -math.inf
    speed: SpeedSeen = UNSEEN  # of the jobs of this profile that ended
    parts: tuple[GpuRange, ...] = ()  # of it that are kept under keys of their own

    @property
    def complete(self) -> bool:
        """Its pre-run is over: there is something to count on."""
        return self.tried_to > 0


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
