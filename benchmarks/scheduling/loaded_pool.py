"""A pool under load, folded from the events of a simulation, and the events that may follow."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import cast

from benchmarks.scheduling.workloads import cluster_of
from elasticflow.shared.messages.events import JobFinished, JobProgressed, NodeEndAnnounced, PlanDecided, PlanEvent
from elasticflow.shared.scheduling.jobs.scheduler_view import KnownCurves, iteration_at, known_curve
from elasticflow.shared.state.fold.ledger_fold import evolve
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import TraceJob

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
