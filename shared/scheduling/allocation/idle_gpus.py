"""Why GPUs are idle: one cause for each of them, by the newest allocation and the scaling curves."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from math import inf

from elasticflow.shared.scheduling.jobs.scheduler_view import promisable_gpus
from elasticflow.shared.state.idle_windows import CARRIES_A_JOB
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, spec_of


class IdleCause(StrEnum):
    """The first that applies, in this order.

    between_placements: allocated to a job, which is not placed there yet.
    no_demand: no job is live. flat_curve: no job gains enough from more GPUs.
    power_of_two: the next useful number of GPUs of every job exceeds those that are idle.
    reserve: kept for failures; without the reserve a job could use them.
    """

    BETWEEN_PLACEMENTS = "between_placements"
    NO_DEMAND = "no_demand"
    FLAT_CURVE = "flat_curve"
    POWER_OF_TWO = "power_of_two"
    RESERVE = "reserve"


def idle_gpus(state: PoolState) -> Mapping[IdleCause, int]:
    """The number of idle GPUs by cause; causes without any are left out. GPUs of nodes about to leave do not count."""
    counted = (since_s_G for node_id, since_s_G in state.idle_since_s.items() if node_id not in state.draining)
    idle = sum(since_s < CARRIES_A_JOB for since_s_G in counted for since_s in since_s_G)
    allocated = sum(max(job.num_gpus - len(job.own_gpus), 0) for job in state.live_jobs.values()) if idle else 0
    between = min(idle, allocated)
    found = {IdleCause.BETWEEN_PLACEMENTS: between, **_of_unallocated(state, idle - between)}
    return {cause: count for cause, count in found.items() if count}


def _of_unallocated(state: PoolState, idle: int) -> Mapping[IdleCause, int]:
    if not idle:
        return {}
    if not state.live_jobs:
        return {IdleCause.NO_DEMAND: idle}
    reserve = min(state.num_gpus - promisable_gpus(state)[0], idle)
    least = min(_missing_to_the_next_level(state), default=inf)
    if least == inf or least <= idle - reserve:
        return {IdleCause.FLAT_CURVE: idle}
    kept = reserve if least <= idle else 0
    return {IdleCause.RESERVE: kept, IdleCause.POWER_OF_TWO: idle - kept}


def _missing_to_the_next_level(state: PoolState) -> Iterator[int]:
    """Of each live job that would gain from more GPUs: how many it lacks."""
    for job in state.live_jobs.values():
        level = _next_level(state, job)
        if level is not None:
            yield level - job.num_gpus


def _next_level(state: PoolState, job: Job) -> int | None:
    """The fewest GPUs on which a job would be faster than on its share, even beyond the pool; None if there are none.

    Beyond the measured numbers of GPUs, twice as many are taken for faster unless a probe has shown otherwise.
    """
    spec, allowed = spec_of(job), spec_of(job).gpu_range
    measured = state.curves.get(spec.profile_key)
    if job.phase is Phase.PROFILING or measured is None or not measured.iterations_per_s:
        return None if job.num_gpus else allowed.least
    rates = measured.iterations_per_s
    best = max((rate for level, rate in rates.items() if level <= job.num_gpus), default=0.0)
    faster = [level for level, rate in rates.items() if level > job.num_gpus and rate > best]
    if not faster and measured.probed_to < inf:
        faster = [2 * max(rates)]
    usable = [level for level in faster if level <= spec.global_batch_size and allowed.allows(level)]
    return min(usable, default=None)
