"""The time of one decision in a large pool, of a planning cycle in a very large one, and of whole simulations.

Decisions, on a request for a deadline and on a quote, are asked of a state in which every job has reported since the
last one, exactly or in whole iterations (which puts each a little behind its plan), and once more while nothing is new.
In a cycle of admission, allocation, placement, and the folds between, one job has ended and one asks to come in; all
others have reported exactly. Beside them stands one plain pass over the same jobs, in the same run: what it takes in
Python only to look at each of them. Simulations run on one core, with and without checks of every certificate.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.scheduling.pools import (
    all_reported,
    arriving_jobs,
    decided,
    ends_announced,
    laid_out_pool,
    loaded_simulation,
    one_ended,
    plain_pass,
    submitted,
    utilization,
)
from benchmarks.scheduling.workloads import Case, cluster_of
from benchmarks.timing import Took, spreads, timed
from elasticflow.services.admission import policy as admission
from elasticflow.services.admission.quote import quote
from elasticflow.services.allocator import policy as allocator
from elasticflow.services.placement import policy as placement
from elasticflow.shared.messages.commands import Command, QuoteDeadline
from elasticflow.shared.messages.events import JobAdmitted, JobRejected
from elasticflow.shared.runtime.service.run_service import keep_what_is_loaded
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.trace.simulated_run import SimulatedRun, execute
from elasticflow.simulator.trace.simulation import spec_of, submission
from elasticflow.simulator.workload.generator import Arrivals, Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import TENANT, TraceJob

# --- one decision --------------------------------------------------------------------------------------


LOOSE, TIGHT = (4.0, 12.0), (0.5, 1.5)  # deadlines over durations: a pool with free GPUs, and a saturated one
POOLS = {  # deadlines, and how many nodes have announced their end
    "with_room": (LOOSE, 0),
    "with_room_and_node_ends": (LOOSE, 8),
    "saturated": (TIGHT, 0),
    "saturated_and_node_ends": (TIGHT, 8),
}
APART_S = 0.001  # between two arriving jobs: the pool stays as it is, and no planned change falls due
DECISIONS = (
    "decision, all a little behind",
    "decision, all reported",
    "decision, nothing new",
)  # in this order


def recipe_of(num_gpus: int, num_live: int, tightness: tuple[float, float]) -> Recipe:
    """Jobs that come in bursts, far faster than they end, until so many live."""
    return Recipe(
        num_jobs=6 * num_live,
        cluster_gpus=num_gpus,
        load=6.0,
        arrivals=Arrivals.BURSTY,
        jobs_per_burst=max(num_live / 4, 1.0),
        median_gpu_hours=4.0,
        tightness=tightness,
    )


def measure_decisions(
    known: Throughputs, *, num_gpus: int, num_live: int, count: int, pools: Sequence[str] = tuple(POOLS)
) -> dict[str, Any]:
    """One request and one quote at a time, in these of POOLS: with free GPUs, and saturated ones."""
    warm_up()
    keep_what_is_loaded()
    return {"num_gpus": num_gpus} | {
        name: _asked(known, recipe_of(num_gpus, num_live, tightness), num_live, count, num_ends)
        for name, (tightness, num_ends) in POOLS.items()
        if name in pools
    }


def measure_answers(known: Throughputs, *, sizes: Sequence[int], count: int) -> list[dict[str, Any]]:
    """One request at a time in saturated pools with so many live jobs, by the answer and its reason.

    A rejection for its deadline searches the earliest one that can be kept; one for its price does not.
    """
    warm_up()
    keep_what_is_loaded()
    return [_answered(known, recipe_of(2 * num_live, num_live, TIGHT), num_live, count) for num_live in sizes]


def _answered(known: Throughputs, recipe: Recipe, num_live: int, count: int) -> dict[str, Any]:
    simulation = loaded_simulation(recipe, known, num_live)
    now_s, cache = simulation.now_s, PlanningCache()
    times = defaultdict[str, list[Took]](list)
    for job in arriving_jobs(recipe, known, count):
        now_s += APART_S
        state, asking = all_reported(simulation.state, now_s), submitted(job, now_s)
        (answer, *_), took = timed(partial(admission.decide, state, (submission(asking),), now_s, cache))
        times["all"].append(took)
        times[f"rejected: {answer.reason}" if isinstance(answer, JobRejected) else "admitted"].append(took)
        times["plain pass"].append(timed(partial(plain_pass, state))[1])
    return {
        "num_gpus": recipe.cluster_gpus,
        "live_jobs": len(simulation.state.live_jobs),
        "answers": {what: len(tooks) for what, tooks in times.items()},
        **spreads(times),
    }


def _with_first_admission(state: PoolState, jobs: Iterator[TraceJob], now_s: float, cache: PlanningCache) -> PoolState:
    """The first admission after an announced end replans all promises; it is decided once, and not measured."""
    for job in jobs:
        said = admission.decide(state, (submission(submitted(job, now_s)),), now_s, cache)
        state = decided(state, "admission", said, now_s)
        if any(isinstance(event, JobAdmitted) for event in said):
            break
    return state


def _asked(known: Throughputs, recipe: Recipe, num_live: int, count: int, num_ends: int) -> dict[str, Any]:
    simulation = loaded_simulation(recipe, known, num_live)
    now_s = simulation.now_s
    cache, jobs = PlanningCache(), arriving_jobs(recipe, known, count)
    state = ends_announced(simulation.state, num_ends, now_s)
    if num_ends:
        state = _with_first_admission(state, jobs, now_s, cache)
    times: dict[str, list[Took]] = {what: [] for what in (*DECISIONS, "quote", "plain pass")}
    admitted = 0
    for job in jobs:
        now_s += APART_S
        asking = submitted(job, now_s)
        reported, behind = all_reported(state, now_s), all_reported(state, now_s, whole=True)
        for what, pool in zip(DECISIONS, (behind, reported, reported), strict=True):
            said, took = timed(partial(admission.decide, pool, (submission(asking),), now_s, cache))
            times[what].append(took)
            if what == DECISIONS[-1]:
                admitted += any(isinstance(event, JobAdmitted) for event in said)
        question = QuoteDeadline(tenant=TENANT, spec=spec_of(asking))
        state = all_reported(reported, now_s)
        times["quote"].append(timed(partial(quote, state, question, now_s, cache))[1])
        times["plain pass"].append(timed(partial(plain_pass, state))[1])
    return {
        "live_jobs": len(state.live_jobs),
        "nodes_with_an_end": num_ends,
        "promised_next_hour": utilization(state, now_s),
        "arriving_jobs": count,
        "admitted": admitted,
        **spreads(times),
    }


# --- a planning cycle ----------------------------------------------------------------------------------


APART_IN_A_CYCLE_S = 0.01  # between two arriving jobs, so that the pool stays as it is


def measure_cycle(known: Throughputs, *, num_gpus: int, num_live: int, count: int) -> dict[str, Any]:
    """So many cycles, one after another."""
    warm_up()
    keep_what_is_loaded()
    cache = PlanningCache()
    policies = (admission.with_cache(cache), allocator.with_cache(cache), placement.with_cache(cache))
    recipe = replace(recipe_of(num_gpus, num_live, LOOSE), num_jobs=2 * num_live)
    (state, now_s), built = timed(partial(laid_out_pool, recipe, known, num_live))
    times: Mapping[str, list[Took]] = defaultdict(list[Took])
    for job in arriving_jobs(recipe, known, count):
        now_s += APART_IN_A_CYCLE_S
        state = one_ended(all_reported(state, now_s), now_s)
        times["plain pass"].append(timed(partial(plain_pass, state))[1])
        state = _cycle(state, policies, (submission(submitted(job, now_s)),), now_s, times)
    return {
        "num_gpus": num_gpus,
        "live_jobs": len(state.live_jobs),
        "training_jobs": sum(job.training for job in state.live_jobs.values()),
        "promised_next_hour": utilization(state, now_s),
        "cycles": len(times["whole"]),
        "pool_built_cpu_s": built.cpu_s,
        **spreads(times),
    }


def _cycle(
    state: PoolState,
    policies: Sequence[Policy[PoolState]],
    commands: tuple[Command, ...],
    now_s: float,
    times: Mapping[str, list[Took]],
) -> PoolState:
    """Ask all three, each on what the one before it decided."""
    deciding, folding = Took(), Took()
    for policy, asked in zip(policies, (commands, (), ()), strict=True):
        service = policy.service
        said, took = timed(partial(policy.decide, state, asked, now_s))
        times[service].append(took)
        state, to_fold = timed(partial(decided, state, service, said, now_s))
        deciding, folding = deciding + took, folding + to_fold
    times["folds"].append(folding)
    times["whole"].append(deciding + folding)
    return state


# --- whole simulations ---------------------------------------------------------------------------------


TWO_MONTHS = Recipe(num_jobs=15_000, cluster_gpus=1_024, load=0.7, median_gpu_hours=22.0)
SEED, DAY_S = 1, 86_400.0
WARM_UP_JOBS = 30


def two_months(known: Throughputs, share: float = 1.0) -> Case:
    """15,000 jobs over two months on 1,024 GPUs, or so much of them."""
    recipe = TWO_MONTHS
    workload = generate(recipe, known, SEED, "generated two months")
    case = Case(workload=workload, published_gpus=recipe.cluster_gpus)
    return case.first(int(share * recipe.num_jobs)) if share < 1 else case


def measure_simulation(case: Case) -> list[dict[str, Any]]:
    """One run without and one with verification."""
    warm_up()
    measure_run(case.first(WARM_UP_JOBS), verified=True)  # what is still compiled or loaded is not counted
    return [measure_run(case, verified=verified) for verified in (False, True)]


def measure_run(case: Case, *, verified: bool) -> dict[str, Any]:
    """One run, from its start. verified: every certificate is checked."""
    simulated_run = SimulatedRun(workload=case.workload, cluster=cluster_of(case.published_gpus))
    verification = simulated_run.verification() if verified else None
    simulation = simulated_run.simulation(verification)
    outcome, took = timed(lambda: execute(simulated_run, simulation, verification))
    jobs = case.workload.jobs
    return {
        "trace": case.name,
        "num_gpus": simulated_run.cluster.num_gpus,
        "jobs": len(jobs),
        "days": (jobs[-1].submitted_at_s - jobs[0].submitted_at_s) / DAY_S,
        "verified": verified,
        "wall_s": took.wall_s,
        "cpu_s": took.cpu_s,
        "messages": simulation.state.sequence,
        "cpu_ms_a_message": 1e3 * took.cpu_s / simulation.state.sequence,
        "met": outcome.result.num_met(),
        "late": outcome.result.num_late(),
        "certificate_failures": outcome.certificate_failures,
    }
