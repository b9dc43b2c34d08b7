"""How long one decision takes in a large pool: a wish for a deadline, a quote, a whole planning cycle.

Decisions are asked of a state in which every job has reported since the last one, exactly or in whole iterations (which
puts each a little behind its plan), and once more while nothing is new. Beside them stands one plain pass over the same
jobs, in the same run: what it takes in Python only to look at each of them.
"""

from functools import partial
from typing import Any

from benchmarks.scheduling.loaded_pool import (
    all_reported,
    loaded_simulation,
    newcomers,
    one_ended,
    submitted,
    utilization,
)
from benchmarks.scheduling.timing import cpu_ms, spread
from services.admission import policy as admission
from services.allocator import policy as allocator
from services.placement import policy as placement
from shared.messages.commands import Command, QuoteDeadline
from shared.messages.events import JobAdmitted, PlanDecided, PlanEvent
from shared.messages.lifecycle import evolve
from shared.messages.pool_state import PoolState
from shared.scheduling.warm_up import warm_up
from simulator.trace_driven.pool import TENANT, spec_of, wish
from simulator.workload.generator import Arrivals, Recipe
from simulator.workload.throughputs import Throughputs

LOOSE, TIGHT = (4.0, 12.0), (0.5, 1.5)  # deadlines over durations: a pool with room, and a saturated one
APART_S = 0.01  # between two newcomers, so that the pool stays as it is
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


def measure_decisions(known: Throughputs, *, num_gpus: int, num_live: int, count: int) -> dict[str, Any]:
    """One wish and one quote at a time, with room and saturated."""
    warm_up()
    return {
        "num_gpus": num_gpus,
        "with_room": _asked(known, recipe_of(num_gpus, num_live, LOOSE), num_live, count),
        "saturated": _asked(known, recipe_of(num_gpus, num_live, TIGHT), num_live, count),
    }


def _asked(known: Throughputs, recipe: Recipe, num_live: int, count: int) -> dict[str, Any]:
    simulation = loaded_simulation(recipe, known, num_live)
    state, now_s = simulation.state, simulation.now_s
    times_ms: dict[str, list[float]] = {what: [] for what in (*DECISIONS, "quote", "plain pass")}
    admitted = 0
    for job in newcomers(recipe, known, count):
        now_s += APART_S
        asking = submitted(job, now_s)
        reported, behind = all_reported(state, now_s), all_reported(state, now_s, whole=True)
        for what, pool in zip(DECISIONS, (behind, reported, reported), strict=True):
            said, took_ms = cpu_ms(partial(admission.decide, pool, (wish(asking),), now_s))
            times_ms[what].append(took_ms)
            if what == DECISIONS[-1]:
                admitted += any(isinstance(event, JobAdmitted) for event in said)
        question = QuoteDeadline(tenant=TENANT, spec=spec_of(asking))
        state = all_reported(reported, now_s)
        times_ms["quote"].append(cpu_ms(partial(admission.quote, state, question, now_s))[1])
        times_ms["plain pass"].append(cpu_ms(partial(_plain_pass, state))[1])
    return {
        "live_jobs": len(state.live_jobs),
        "promised_next_hour": utilization(state, now_s),
        "newcomers": count,
        "admitted": admitted,
        "cpu_ms": {what: spread(times) for what, times in times_ms.items()},
    }


def measure_cycle(known: Throughputs, *, num_gpus: int, num_live: int, count: int) -> dict[str, Any]:
    """One job has ended and one asks to come in: admission, allocation and placement, and the folds between them."""
    warm_up()
    recipe = recipe_of(num_gpus, num_live, LOOSE)
    simulation = loaded_simulation(recipe, known, num_live)
    state, now_s = simulation.state, simulation.now_s
    parts_ms: dict[str, list[float]] = {
        "admission": [],
        "allocator": [],
        "placement": [],
        "folds": [],
        "whole": [],
        "plain pass": [],
    }
    for job in newcomers(recipe, known, count):
        now_s += APART_S
        state = one_ended(all_reported(state, now_s), now_s)
        parts_ms["plain pass"].append(cpu_ms(partial(_plain_pass, state))[1])
        asking = wish(submitted(job, now_s))
        state = _cycle(state, (asking,), now_s, parts_ms)
    return {
        "num_gpus": num_gpus,
        "live_jobs": len(state.live_jobs),
        "promised_next_hour": utilization(state, now_s),
        "cycles": len(parts_ms["whole"]),
        "cpu_ms": {part: spread(times) for part, times in parts_ms.items()},
    }


def _cycle(
    state: PoolState, commands: tuple[Command, ...], now_s: float, parts_ms: dict[str, list[float]]
) -> PoolState:
    """Ask all three, each on what the one before it decided."""
    whole_ms = folds_ms = 0.0
    for policy, wishes in ((admission, commands), (allocator, ()), (placement, ())):
        service = policy.POLICY.service
        said, took_ms = cpu_ms(partial(policy.decide, state, wishes, now_s))
        parts_ms[service].append(took_ms)
        state, fold_ms = cpu_ms(partial(_decided, state, service, said, now_s))
        whole_ms += took_ms + fold_ms
        folds_ms += fold_ms
    parts_ms["folds"].append(folds_ms)
    parts_ms["whole"].append(whole_ms)
    return state


def _decided(state: PoolState, service: str, said: tuple[PlanEvent, ...], now_s: float) -> PoolState:
    if not said:
        return state
    decision = PlanDecided(service=service, based_on=state.sequence, now_s=now_s, events=said)
    return evolve(state, decision, state.sequence + 1)


def _plain_pass(state: PoolState) -> float:
    """Look at each live job once."""
    left = 0.0
    for job in state.live_jobs.values():
        if job.spec is not None and job.deadline_s is not None:
            left += (job.spec.max_iterations - job.iteration) * job.num_gpus
    return left
