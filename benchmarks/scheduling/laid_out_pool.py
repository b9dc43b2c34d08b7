"""A very large pool under load whose promises are constructed instead of decided: ten thousand jobs in seconds.

Each job holds one number of GPUs until it ends, on a block that jobs of its size use one after another: schedules fit
together, blocks are buddy blocks, and deadlines are set so that each promise holds. Then the allocator and placement
themselves spend what is left, until they have nothing more to say: what they decide later owes nothing to the layout.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.scheduling.loaded_pool import SEED, SETTLES_S, all_reported, decided, fold
from benchmarks.scheduling.workloads import cluster_of
from elasticflow.services.allocator import policy as allocator
from elasticflow.services.placement import policy as placement
from elasticflow.shared.messages.events import (
    AllocationDecided,
    GenerationStarted,
    JobAdmitted,
    PlacedJob,
    PlacementDecided,
)
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.scheduling.jobs.scheduler_view import resize_cost
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.simulated_pool import SimulatedPool, spec_of
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import TENANT, ClusterShape, TraceJob

BEGAN_S = 0.0
FILLED = 0.9  # of the GPUs; what is left is spent by the allocator
SPARE_S = 1.0  # of each schedule, beyond what its job needs
LEAST_S = 600.0  # no job ends while the pool settles


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A job on block `block` of its size, first of all or after others."""

    job: TraceJob
    num_gpus: int
    block: int
    begins_s: float
    ends_s: float

    def admitted(self) -> JobAdmitted:
        assert self.job.deadline_s is not None
        allowed_s = self.job.deadline_s - self.job.submitted_at_s
        return JobAdmitted(
            job_id=self.job.job_id,
            tenant=TENANT,
            spec=spec_of(self.job),
            deadline_s=max(BEGAN_S + allowed_s, self.ends_s),
            minimum_satisfactory_share=(self.begins_s, self.ends_s, self.num_gpus),
            gpu_seconds=self.num_gpus * (self.ends_s - self.begins_s),
            at_s=BEGAN_S,
        )


def laid_out_pool(recipe: Recipe, known: Throughputs, num_live: int) -> tuple[PoolState, float]:
    """So many promised jobs, all with GPUs training; and the instant at which that is so."""
    workload = generate(recipe, known, SEED, "generated load")
    cluster, cost = cluster_of(recipe.cluster_gpus), reference_cost(recipe.cluster_gpus)
    config = SimulatedPool(migrates_promised=False).settings(workload, TrainingModel(resize_cost=cost))
    state = fold(PoolState(), simulated_events.pool_configured(config, 0, BEGAN_S))
    for node_id in cluster.node_ids:
        state = fold(state, simulated_events.node_joined(node_id, cluster.gpus_per_node, None, BEGAN_S))
    stays = _stays(workload.jobs, recipe.cluster_gpus, state, num_live)
    state = decided(state, "admission", tuple(occupancy.admitted() for occupancy in stays), BEGAN_S)
    first = [occupancy for occupancy in stays if occupancy.begins_s == BEGAN_S]
    shares = {occupancy.job.job_id: occupancy.num_gpus for occupancy in first}
    spend_at_s = BEGAN_S + SETTLES_S
    allocation = AllocationDecided(num_gpus_by_job=shares, valid_until_s=spend_at_s, at_s=BEGAN_S)
    state = decided(state, "allocator", (allocation,), BEGAN_S)
    state = decided(state, "placement", (_placed(first, cluster),), BEGAN_S)
    return _settled(_all_started(state), spend_at_s)


def _stays(jobs: Iterable[TraceJob], num_gpus: int, state: PoolState, num_live: int) -> list[Stay]:
    """Blocks are opened while GPUs are free, then used again, each as soon as it is free."""
    num_free, num_blocks, cost = int(FILLED * num_gpus), Counter[int](), resize_cost(state)
    free: dict[int, list[tuple[float, int]]] = {}  # by size: since when, which block
    stays = list[Stay]()
    for job in jobs:
        size = max((level for level in job.curve.levels if level <= job.num_gpus), default=0)
        lasts_s = cost.seconds(size) + job.num_iterations / job.curve.throughput(size) if size else 0.0
        if job.deadline_s is None or lasts_s < LEAST_S or (size > num_free and size not in free):
            continue
        if size <= num_free:
            begins_s, block = BEGAN_S, num_blocks[size]
            num_free -= size
            num_blocks[size] += 1
        else:
            begins_s, block = heapq.heappop(free[size])
        ends_s = begins_s + lasts_s + SPARE_S
        heapq.heappush(free.setdefault(size, []), (ends_s, block))
        stays.append(Stay(job=job, num_gpus=size, block=block, begins_s=begins_s, ends_s=ends_s))
        if len(stays) == num_live:
            break
    return stays


def _placed(stays: Iterable[Stay], cluster: ClusterShape) -> PlacementDecided:
    """The largest blocks first, one beside the other: so each begins at a multiple of its size."""
    gpus = [gpu for node_id in cluster.node_ids for gpu in cluster.gpus_of(node_id)]
    placements, at = list[PlacedJob](), 0
    for occupancy in sorted(stays, key=lambda occupancy: (-occupancy.num_gpus, occupancy.block)):
        block: tuple[GpuId, ...] = tuple(gpus[at : at + occupancy.num_gpus])
        placements.append(PlacedJob(job_id=occupancy.job.job_id, generation=1, gpus=block))
        at += occupancy.num_gpus
    return PlacementDecided(placements=tuple(placements), at_s=BEGAN_S)


def _settled(state: PoolState, now_s: float) -> tuple[PoolState, float]:
    """When no policy has another decision and all moved jobs train."""
    cache = PlanningCache()
    policies = (allocator.with_cache(cache), placement.with_cache(cache))
    while True:
        state, said = all_reported(state, now_s), False
        for policy in policies:
            events = policy.decide(state, (), now_s)
            state, said = decided(state, policy.service, events, now_s), said or bool(events)
        if not said:
            return state, now_s
        state, now_s = _all_started(state), now_s + SETTLES_S


def _all_started(state: PoolState) -> PoolState:
    """Placed jobs train once their stop is over."""
    for job in state.live_jobs.values():
        if job.gpus and not job.training:
            state = _started(state, job)
    return state


def _started(state: PoolState, job: Job) -> PoolState:
    for gone in job.stopping:
        state = fold(state, simulated_events.workers_stopped(job.job_id, gone, job.iteration, job.placed_at_s))
    started = GenerationStarted(
        job_id=job.job_id,
        generation=job.generation,
        num_gpus=len(job.gpus),
        iteration=job.iteration,
        at_s=job.placed_at_s + resize_cost(state).seconds(len(job.gpus)),
    )
    return fold(state, started)
