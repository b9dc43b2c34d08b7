"""The time of a whole planning cycle in a very large pool: admission, allocation, placement, and the folds between.

One job has ended and one asks to come in; all others have reported since the last decision, exactly. Beside it stands
one plain pass over the same jobs, in the same run: what it takes in Python only to look at each of them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.scheduling.decisions import LOOSE, recipe_of
from benchmarks.scheduling.laid_out_pool import laid_out_pool
from benchmarks.scheduling.loaded_pool import (
    all_reported,
    arriving_jobs,
    decided,
    one_ended,
    plain_pass,
    submitted,
    utilization,
)
from benchmarks.scheduling.timing import Took, spreads, timed
from elasticflow.services.admission import policy as admission
from elasticflow.services.allocator import policy as allocator
from elasticflow.services.placement import policy as placement
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.runtime.service.run_service import keep_what_is_loaded
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.trace.simulated_pool import submission
from elasticflow.simulator.workload.throughput_tables import Throughputs

APART_S = 0.01  # between two arriving jobs, so that the pool stays as it is


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
        now_s += APART_S
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
