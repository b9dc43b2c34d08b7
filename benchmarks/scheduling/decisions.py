"""How long one decision takes in a large pool: a wish for a deadline, a quote, a whole planning cycle.

Each is asked of a state in which every job has reported since the last one, so that nothing remembered helps. Beside
it stands one plain pass over the same jobs, in the same run: what it takes in Python only to look at each of them.
"""

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


def recipe_of(num_gpus: int, num_live: int, tightness: tuple[float, float]) -> Recipe:
    """Jobs that come in bursts, far faster than they end, until so many live."""
    return Recipe(
        num_jobs=6 * num_live,
        cluster_gpus=num_gpus,
        load=6.0,
        arrivals=Arrivals.BURSTY,
        jobs_per_burst=max(num_live / 20, 1.0),
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
    passes_ms, decisions_ms, quotes_ms = list[float](), list[float](), list[float]()
    admitted = 0
    for job in newcomers(recipe, known, count):
        now_s += APART_S
        state = all_reported(state, now_s)
        asking = submitted(job, now_s)
        said, took_ms = cpu_ms(lambda: admission.decide(state, (wish(asking),), now_s))  # noqa: B023
        decisions_ms.append(took_ms)
        admitted += any(isinstance(event, JobAdmitted) for event in said)
        state = all_reported(state, now_s + APART_S / 2)
        question = QuoteDeadline(tenant=TENANT, spec=spec_of(asking))
        _, took_ms = cpu_ms(lambda: admission.quote(state, question, now_s + APART_S / 2))  # noqa: B023
        quotes_ms.append(took_ms)
        passes_ms.append(cpu_ms(lambda: _plain_pass(state))[1])  # noqa: B023
    plain = spread(passes_ms)
    return {
        "live_jobs": len(state.live_jobs),
        "promised_next_hour": utilization(state, now_s),
        "newcomers": len(decisions_ms),
        "admitted": admitted,
        "decision_ms": spread(decisions_ms),
        "quote_ms": spread(quotes_ms),
        "plain_pass_ms": plain,
        "decision_p50_in_passes": spread(decisions_ms)["p50"] / plain["p50"],
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
    }
    passes_ms = list[float]()
    for job in newcomers(recipe, known, count):
        now_s += APART_S
        state = one_ended(all_reported(state, now_s), now_s)
        passes_ms.append(cpu_ms(lambda: _plain_pass(state))[1])  # noqa: B023
        asking = wish(submitted(job, now_s))
        state = _cycle(state, (asking,), now_s, parts_ms)
    plain, whole = spread(passes_ms), spread(parts_ms["whole"])
    return {
        "num_gpus": num_gpus,
        "live_jobs": len(state.live_jobs),
        "promised_next_hour": utilization(state, now_s),
        "cycles": len(parts_ms["whole"]),
        "cpu_ms": {part: spread(times) for part, times in parts_ms.items()},
        "plain_pass_ms": plain,
        "whole_p50_in_passes": whole["p50"] / plain["p50"],
    }


def _cycle(
    state: PoolState, commands: tuple[Command, ...], now_s: float, parts_ms: dict[str, list[float]]
) -> PoolState:
    """Ask all three, each on what the one before it decided."""
    whole_ms = folds_ms = 0.0
    for policy, wishes in ((admission, commands), (allocator, ()), (placement, ())):
        service = policy.POLICY.service
        said, took_ms = cpu_ms(lambda: policy.decide(state, wishes, now_s))  # noqa: B023
        parts_ms[service].append(took_ms)
        before = state
        state, fold_ms = cpu_ms(lambda: _decided(before, service, said, now_s))  # noqa: B023
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
