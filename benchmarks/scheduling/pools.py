"""Pools under load, and the events that may follow.

A loaded pool is folded from the events of a simulation. A laid out one is very large, and its promises are constructed
instead of decided: ten thousand jobs in seconds. Each job holds one number of GPUs until it ends, on a block that jobs
of its size use one after another: schedules fit together, blocks are buddy blocks, and deadlines are set so that each
promise holds. Then the allocator and placement themselves spend what is left, until they have nothing more to say: what
they decide later owes nothing to the layout.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import cast

from benchmarks.scheduling.workloads import cluster_of
from elasticflow.services.allocator import policy as allocator
from elasticflow.services.placement import policy as placement
from elasticflow.shared.messages.events import (
    AllocationDecided,
    GenerationStarted,
    JobAdmitted,
    JobFinished,
    JobProgressed,
    NodeEndAnnounced,
    PlacedJob,
    PlacementDecided,
    PlanDecided,
    PlanEvent,
)
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.scheduling.jobs.scheduler_view import KnownCurves, iteration_at, known_curve, resize_cost
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.ledger_fold import evolve
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.trace.simulation import spec_of as submitted_spec
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import TENANT, ClusterShape, TraceJob

# --- loaded by a simulation ----------------------------------------------------------------------------


SETTLES_S = 30.0  # long enough for all placed jobs to train
HOUR_S = 3_600.0
SEED, ARRIVALS_SEED = 1, 2


def loaded_simulation(recipe: Recipe, known: Throughputs, num_live: int) -> Simulation:
    """A simulation on GPUs that are equal; see `loaded`."""
    workload = generate(recipe, known, SEED, "generated load")
    return loaded(SimulatedRun(workload=workload, cluster=cluster_of(recipe.cluster_gpus)), num_live)


def loaded(run: SimulatedRun, num_live: int) -> Simulation:
    """Run until so many jobs live, or the workload has no more, and those that were placed train."""
    simulation = run.simulation()
    reached_s: float | None = None

    def settled() -> bool:
        nonlocal reached_s
        if reached_s is None and len(simulation.state.live_jobs) >= num_live:
            reached_s = simulation.now_s
        return reached_s is not None and simulation.now_s > reached_s + SETTLES_S

    simulation.run(settled)
    return simulation


def arriving_jobs(recipe: Recipe, known: Throughputs, count: int) -> Iterator[TraceJob]:
    """Other jobs of the same kind, to be submitted whenever one likes."""
    jobs = generate(recipe, known, ARRIVALS_SEED, "generated arrivals").jobs
    dated = [job for job in jobs if job.deadline_s is not None]
    return iter(dated[:: max(len(dated) // count, 1)][:count])


def submitted(job: TraceJob, at_s: float) -> TraceJob:
    """The same job, asked for at another time."""
    assert job.deadline_s is not None
    job_id = f"arriving_job-{job.job_id}"
    return replace(job, job_id=job_id, submitted_at_s=at_s, deadline_s=at_s + job.deadline_s - job.submitted_at_s)


def all_reported(state: PoolState, now_s: float, *, whole: bool = False) -> PoolState:
    """The state after a report of every job that trains.

    No job is as it was, as a live pool sees it every few seconds. whole: reports round down to whole iterations, so
    that every job is a little behind its plan.
    """
    curves = KnownCurves()  # as a pool knows them: new curves for each job would cost more than a decision
    for job in state.live_jobs.values():
        if job.training:
            state = fold(state, _report(state, job, now_s, curves, whole=whole))
    return state


def one_ended(state: PoolState, now_s: float) -> PoolState:
    """The state after the end of the job that is nearest to its own."""
    training = [job for job in state.live_jobs.values() if job.training]
    job = min(training, key=lambda job: (spec_of(job).max_iterations - job.iteration, job.job_id))
    iterations = spec_of(job).max_iterations
    return fold(
        state,
        JobFinished(
            job_id=job.job_id,
            generation=job.generation,
            iteration=iterations,
            condition="max_iterations",
            at_s=now_s,
        ),
    )


def fold(state: PoolState, message: LedgerMessage) -> PoolState:
    """The state after one more message."""
    return evolve(state, message, state.sequence + 1)


def decided(state: PoolState, service: str, events: tuple[PlanEvent, ...], now_s: float) -> PoolState:
    """The state after a decision, if anything was said."""
    if not events:
        return state
    return fold(state, PlanDecided(service=service, based_on=state.sequence, now_s=now_s, events=events))


def ends_announced(state: PoolState, num_nodes: int, now_s: float) -> PoolState:
    """The state after the first of these nodes has announced its end in one hour, the second in two, and so on."""
    ends = [
        NodeEndAnnounced(
            node_id=node.node_id, incarnation=node.incarnation, until_s=now_s + HOUR_S * (number + 1), at_s=now_s
        )
        for number, node in enumerate(list(state.nodes.values())[:num_nodes])
    ]
    return decided(state, "admission", tuple(ends), now_s)


def plain_pass(state: PoolState) -> float:
    """Look at each live job once."""
    left = 0.0
    for job in state.live_jobs.values():
        if job.spec is not None and job.deadline_s is not None:
            left += (job.spec.max_iterations - job.iteration) * job.num_gpus
    return left


def utilization(state: PoolState, now_s: float, ahead_s: float = HOUR_S) -> float:
    """The part of all GPU-seconds in the next hour that promises hold by their plans."""
    held = 0.0
    for job in state.live_jobs.values():
        plan = job.planned_share
        for start_s, end_s, num_gpus in zip(plan[::3], plan[1::3], plan[2::3], strict=True):
            held += num_gpus * max(min(end_s, now_s + ahead_s) - max(start_s, now_s), 0.0)
    return held / (state.num_gpus * ahead_s)


def _report(state: PoolState, job: Job, now_s: float, curves: KnownCurves, *, whole: bool) -> JobProgressed:
    curve = known_curve(state, spec_of(job), curves=curves)
    assert curve is not None
    reached = iteration_at(job, curve, now_s, inf)
    iteration = int(reached) if whole else cast(int, reached)  # with its fraction, as the simulator tells it
    return JobProgressed(
        job_id=job.job_id,
        generation=job.generation,
        iteration=iteration,
        iterations_per_s=None,
        checkpoint_iteration=iteration,
        at_s=now_s,
    )


# --- laid out ------------------------------------------------------------------------------------------


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
            spec=submitted_spec(self.job),
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
