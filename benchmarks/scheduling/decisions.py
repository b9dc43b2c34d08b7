"""How long one decision takes in a large pool: on a wish for a deadline, and on a quote.

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
    plain_pass,
    submitted,
    utilization,
)
from benchmarks.scheduling.timing import Took, spreads, timed
from services.admission import policy as admission
from shared.messages.commands import QuoteDeadline
from shared.messages.events import JobAdmitted
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
    times: dict[str, list[Took]] = {what: [] for what in (*DECISIONS, "quote", "plain pass")}
    admitted = 0
    for job in newcomers(recipe, known, count):
        now_s += APART_S
        asking = submitted(job, now_s)
        reported, behind = all_reported(state, now_s), all_reported(state, now_s, whole=True)
        for what, pool in zip(DECISIONS, (behind, reported, reported), strict=True):
            said, took = timed(partial(admission.decide, pool, (wish(asking),), now_s))
            times[what].append(took)
            if what == DECISIONS[-1]:
                admitted += any(isinstance(event, JobAdmitted) for event in said)
        question = QuoteDeadline(tenant=TENANT, spec=spec_of(asking))
        state = all_reported(reported, now_s)
        times["quote"].append(timed(partial(admission.quote, state, question, now_s))[1])
        times["plain pass"].append(timed(partial(plain_pass, state))[1])
    return {
        "live_jobs": len(state.live_jobs),
        "promised_next_hour": utilization(state, now_s),
        "newcomers": count,
        "admitted": admitted,
        **spreads(times),
    }
