"""Allocation: how many GPUs each job gets now. Each promised job gets its share, the rest goes by marginal return.

`admission_plan` decides what is promised, `placement` which GPUs these are.
Source: ElasticFlow, Algorithm 2, in continuous time: a step up must also pay for its resize.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.whole_blocks import gangs_fit
from elasticflow.shared.scheduling.availability.availability_profile import (
    MAX_SEGMENTS,
    PIECES_OF_A_JOB,
    AvailabilityProfile,
    Schedules,
    ScratchArrays,
    change,
    copy_into,
    fewest_free,
    release,
    reserve,
)
from elasticflow.shared.scheduling.availability.fill import (
    Jobs,
    Limits,
    PlanArrays,
    fill,
    fill_or_report_late,
    gpu_seconds,
    write_segments,
)
from elasticflow.shared.scheduling.compiled_loops import Flags, Floats, Integers, compiled
from elasticflow.shared.scheduling.jobs.scheduler_view import next_level, promisable_gpus
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import CARRIES_A_JOB, PoolState, spec_of

# --- marginal return -----------------------------------------------------------------------------------
# Marginal return: GPUs that no promise holds now go to waiting jobs, then to the steps up that save the most GPU-
# seconds.
#
# Compiled loops over arrays. Axes: J = jobs; K = some jobs in order. Source: ElasticFlow, Algorithm 2.


@compiled
def keep_unsaved_work(plan: PlanArrays, jobs_K: Integers) -> None:
    """Leave jobs that would start over on their GPUs, where that ends them sooner than any change."""
    availability, schedules, jobs = plan.availability, plan.schedules, plan.jobs
    found, memory = plan.work.found, plan.work.memory
    now_s = availability.start_B[0]
    for job in jobs_K:
        held = jobs.held_J[job]
        if not jobs.starts_over_J[job] or jobs.unsaved_J[job] <= 0.0 or not 0 < held <= availability.free_B[0]:
            continue
        for level in range(jobs.num_levels_J[job]):
            if jobs.levels_JL[job, level] == held:
                count = fill(availability, jobs, job, Limits(level, np.inf), found, memory)
                if count > 0 and found.start_M[0] <= now_s and found.num_gpus_M[0] == held:
                    write_segments(schedules, job, found, count)
                    reserve(availability, schedules, job)


@compiled
def start_waiting_jobs(plan: PlanArrays, jobs_K: Integers, most_K: Integers) -> None:
    """Give each job in turn its smallest level, if that is free for long enough to be useful.

    most_K: more GPUs, up to so many, for jobs that shall have more than their smallest level.
    """
    availability, schedules, jobs = plan.availability, plan.schedules, plan.jobs
    found, memory = plan.work.found, plan.work.memory
    now_s = availability.start_B[0]
    for index in range(len(jobs_K)):
        job = jobs_K[index]
        if availability.free_B[0] <= 0:
            return
        cap = 0
        while cap + 1 < jobs.num_levels_J[job] and jobs.levels_JL[job, cap + 1] <= most_K[index]:
            cap += 1
        count = fill(availability, jobs, job, Limits(cap, np.inf), found, memory)
        if count > 0 and found.start_M[0] <= now_s:
            write_segments(schedules, job, found, count)
            reserve(availability, schedules, job)


@compiled
def bring_changes_forward(
    availability: AvailabilityProfile,
    schedules: Schedules,
    jobs_K: Integers,
    changed_J: Flags,
    within_s: float,
) -> None:
    """Apply changes now that are planned within `within_s`, where the GPUs are already free.

    Jobs end slightly before their planned end; the next job need not wait for it. No job ends later.
    """
    now_s = availability.start_B[0]
    for job in jobs_K:
        starts, num_gpus = schedules.start_JM[job], schedules.num_gpus_JM[job]
        count = schedules.count_J[job]
        if count == 0:
            continue
        next_one = 0 if starts[0] > now_s else 1
        if next_one == count or starts[next_one] > now_s + within_s:
            continue
        held = num_gpus[0] if next_one == 1 else 0
        if num_gpus[next_one] < held:
            continue  # fewer GPUs sooner would end later
        begins_s = starts[next_one]
        if next_one == 1 and schedules.end_JM[job, 0] < begins_s:
            continue
        if fewest_free(availability, now_s, begins_s) < num_gpus[next_one] - held:
            continue
        change(availability, now_s, begins_s, held - num_gpus[next_one])
        changed_J[job] = True
        starts[next_one] = now_s
        if next_one == 1:
            for segment in range(1, count):
                starts[segment - 1], num_gpus[segment - 1] = starts[segment], num_gpus[segment]
                schedules.end_JM[job, segment - 1] = schedules.end_JM[job, segment]
            schedules.count_J[job] = count - 1


@compiled
def allocate_by_marginal_return(plan: PlanArrays, jobs_K: Integers, hysteresis_s: float) -> None:
    """Distribute the GPUs that are free now, one step at a time, to the job with the greatest marginal return.

    A step that another one made stale is valued again before it is taken. Source: ElasticFlow, Algorithm 2.
    """
    availability, schedules, jobs, work = plan.availability, plan.schedules, plan.jobs, plan.work
    changed_J, found = plan.changed_J, plan.work.found
    num_jobs = len(jobs_K)
    gains: Floats = np.empty(num_jobs, np.float64)
    if availability.free_B[0] <= 0:
        return
    for index in range(num_jobs):
        gains[index], _ = next_paying_step(availability, schedules, jobs, jobs_K[index], hysteresis_s, work)
    while availability.free_B[0] > 0 and num_jobs > 0:
        index = int(np.argmax(gains))
        if gains[index] == -np.inf:
            return
        job = int(jobs_K[index])
        promised_gain = float(gains[index])
        gains[index], count = next_paying_step(availability, schedules, jobs, job, hysteresis_s, work)
        if count >= 0 and gains[index] >= promised_gain:
            release(availability, schedules, job)
            write_segments(schedules, job, found, count)
            changed_J[job] = True
            reserve(availability, schedules, job)
            gains[index], _ = next_paying_step(availability, schedules, jobs, job, hysteresis_s, work)


@compiled
def next_paying_step(
    availability: AvailabilityProfile,
    schedules: Schedules,
    jobs: Jobs,
    job: int,
    hysteresis_s: float,
    work: ScratchArrays,
) -> tuple[float, int]:
    """The next step up that pays: GPU-seconds saved for each added GPU, and the number of its segments in `work.found`;
    (-inf, -1) if none.
    """
    now_s, found = availability.start_B[0], work.found
    count = schedules.count_J[job]
    last = jobs.num_levels_J[job] - 1
    if count == 0:
        return -np.inf, -1
    share = schedules.num_gpus_JM[job, 0] if schedules.start_JM[job, 0] <= now_s else 0
    if share >= jobs.levels_JL[job, last]:
        return -np.inf, -1
    if availability.size[0] + 4 * MAX_SEGMENTS > availability.start_B.shape[0]:  # no capacity to reserve the result
        return -np.inf, -1
    level = 0
    while jobs.levels_JL[job, level] <= share:
        level += 1
    if jobs.levels_JL[job, level] - share > availability.free_B[0]:
        return -np.inf, -1
    highest, old_gpu_seconds = 0, 0.0
    for segment in range(count):
        held = schedules.num_gpus_JM[job, segment]
        highest = max(highest, held)
        old_gpu_seconds += held * (schedules.end_JM[job, segment] - schedules.start_JM[job, segment])
    old_end_s = schedules.end_JM[job, count - 1]
    without_it = work.availability
    copy_into(without_it, availability)
    release(without_it, schedules, job)
    unmoved = -1
    for candidate in range(level, last + 1):
        if jobs.levels_JL[job, candidate] == jobs.held_J[job] and jobs.held_J[job] <= without_it.free_B[0]:
            unmoved = candidate  # the unchanged share is compared before any resize
    for attempt in range(-1, last + 1 - level):
        candidate = unmoved if attempt < 0 else level + attempt
        if candidate < 0:
            continue
        if jobs.levels_JL[job, candidate] > without_it.free_B[0]:
            break
        cap = candidate
        while jobs.levels_JL[job, cap] < highest:
            cap += 1
        by_s = old_end_s if attempt < 0 else old_end_s - hysteresis_s
        count = fill(without_it, jobs, job, Limits(cap, by_s), found, work.memory)
        if count > 0 and found.start_M[0] <= now_s and found.num_gpus_M[0] > share:
            gain = (old_gpu_seconds - gpu_seconds(found, count)) / (found.num_gpus_M[0] - share)
            return gain, count
    return -np.inf, -1


# --- allocation ----------------------------------------------------------------------------------------

IMMINENT_S = 0.05
_NO_ROWS: Mapping[int, float] = MappingProxyType({})

SharesOf = Callable[[int, Mapping[int, int]], Mapping[int, int]]
"""shares_of(num_gpus, taken) -> the GPUs of each row that shares num_gpus. taken: by row, what rows have already."""


def no_shares(num_gpus: int, taken: Mapping[int, int]) -> Mapping[int, int]:
    """No row begins with more than its smallest level."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The number of GPUs of each job until `valid_until_s`, when the next planned change is due."""

    num_gpus_by_job: Mapping[str, int]
    valid_until_s: float


class RowsWithoutPromise(NamedTuple):
    """The rows beside the promised ones, in the order in which they get GPUs.

    soft: planned end of opportunistic rows with a soft deadline. They are planned around all promises in this order; a
    row that misses its end is treated as the others.
    padding: rows that get what no other row can use.
    shares_of: of the free GPUs, those that opportunistic rows begin with, before others begin with one level.
    """

    opportunistic: Sequence[int] = ()
    soft: Mapping[int, float] = _NO_ROWS
    padding: Sequence[int] = ()
    shares_of: SharesOf = no_shares


NO_ROWS = RowsWithoutPromise()


def allocate(
    plan: AdmissionPlan, beside: RowsWithoutPromise = NO_ROWS, hysteresis_s: float = 1.0, *, num_lent: int = 0
) -> Allocation:
    """Return the shares for now: those of the plan, then one level for each opportunistic row in order, then by
    marginal return.

    hysteresis_s: a resize beyond the plan must end the job at least this much earlier.
    num_lent: GPUs beside those of the plan that are reserved for failures; only opportunistic jobs may use them.
    Opportunistic jobs that would start over at a change keep their GPUs before others start (docs/adr/0090).
    No promise is touched: a schedule is only replaced by one that ends no later and fits around all others.
    Opportunistic jobs use GPUs that no promise holds, for as long as none does, and those of a node that leaves as if
    it stayed: they wait when it is drained, if they must.
    Promised jobs get no more than the plan gives them if a replica of several GPUs would then lack a whole block.
    """
    assert len(plan.changed) >= plan.table.num_jobs, "rows are appended with AdmissionPlan.append"
    plan.make_space(8 * MAX_SEGMENTS + PIECES_OF_A_JOB * (len(beside.opportunistic) + len(beside.padding)))
    if not plan.gangs:
        return _allocated(plan, beside, hysteresis_s, num_lent, plan.promised)
    before = plan.copied()
    allocation = _allocated(plan, beside, hysteresis_s, num_lent, plan.promised)
    if not gangs_fit(plan):
        plan.restore(before)
        allocation = _allocated(plan, beside, hysteresis_s, num_lent, plan.promised[:0])
    return allocation


def _allocated(
    plan: AdmissionPlan, beside: RowsWithoutPromise, hysteresis_s: float, num_lent: int, growing: Integers
) -> Allocation:
    """growing: the promised rows that may get more than the plan gives them."""
    table, shares_of = plan.table, beside.shares_of
    rows, last = np.array(beside.opportunistic, np.int64), np.array(beside.padding, np.int64)
    planned, all_rows = np.array(list(beside.soft), np.int64), np.concatenate((plan.promised, rows))
    gaining = np.concatenate((growing, rows))
    table.schedules.count_J[rows], table.schedules.count_J[last] = 0, 0
    table.jobs.deadline_J[planned] = list(beside.soft.values())
    arrays = plan.arrays
    availability, schedules = arrays.availability, arrays.schedules
    bring_changes_forward(availability, schedules, plan.promised, arrays.changed_J, IMMINENT_S)
    fill_or_report_late(arrays, planned)
    keep_unsaved_work(arrays, _without_schedule(schedules, rows))
    _start(arrays, rows, shares_of)
    allocate_by_marginal_return(arrays, gaining, hysteresis_s)
    if num_lent or plan.drops:
        for drop in plan.drops:
            change(availability, drop.at_s, math.inf, drop.num_gpus)
        change(availability, plan.now_s, math.inf, num_lent)
        _start(arrays, rows, shares_of)
        allocate_by_marginal_return(arrays, rows, hysteresis_s)
    _start(arrays, last, no_shares)
    allocate_by_marginal_return(arrays, last, hysteresis_s)
    all_rows = np.concatenate((all_rows, last))
    starts_s, ends_s = schedules.start_JM[all_rows, 0], schedules.end_JM[all_rows, 0]
    holds = schedules.count_J[all_rows] > 0
    now = holds & (starts_s <= plan.now_s)
    shares = np.where(now, schedules.num_gpus_JM[all_rows, 0], 0)
    changes_s: Floats = np.asarray(np.where(now, ends_s, starts_s)[holds], np.float64)
    return Allocation(
        num_gpus_by_job={
            table.job_ids[row]: share for row, share in zip(all_rows.tolist(), shares.tolist(), strict=True)
        },
        valid_until_s=float(changes_s.min(initial=math.inf)),
    )


def _start(plan: PlanArrays, rows: Integers, shares_of: SharesOf) -> None:
    """Start the rows without a schedule: those with a share first, at most with that, then each with one level."""
    schedules = plan.schedules
    waiting, num_free = _without_schedule(schedules, rows), int(plan.availability.free_B[0])
    if not len(waiting) or num_free <= 0:
        return
    running = rows[(schedules.count_J[rows] > 0) & (schedules.start_JM[rows, 0] <= plan.now_s)]
    taken = dict(zip(running.tolist(), schedules.num_gpus_JM[running, 0].tolist(), strict=True))
    shares = shares_of(num_free, taken)
    most_K = np.array([shares.get(row, 0) for row in waiting.tolist()], np.int64)
    order = np.argsort(most_K == 0, kind="stable")
    start_waiting_jobs(plan, waiting[order], most_K[order])


def _without_schedule(schedules: Schedules, rows: Integers) -> Integers:
    return rows[schedules.count_J[rows] == 0]


# --- idle gpus -----------------------------------------------------------------------------------------
# Why GPUs are idle: one cause for each of them, by the newest allocation and the scaling curves.


class IdleCause(StrEnum):
    """The first that applies, in this order.

    between_placements: allocated to a job, which is not placed there yet, or leaves it out because it is slow.
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
    """The number of GPUs that each live job lacks, if it would gain from more."""
    for job in state.live_jobs.values():
        level = _next_level(state, job)
        if level is not None:
            yield level - job.num_gpus


def _next_level(state: PoolState, job: Job) -> int | None:
    """The fewest GPUs on which a job would be faster than on its share, even beyond the pool; None if there are none.

    Beyond the measured numbers of GPUs, twice as many are taken for faster, unless a probe has shown otherwise or the
    last of these are flat.
    """
    spec, allowed = spec_of(job), spec_of(job).gpu_range
    measured = state.curves.get(spec.profile_key)
    if job.phase is Phase.PROFILING or measured is None or not measured.iterations_per_s:
        return None if job.num_gpus else allowed.least
    rates = measured.iterations_per_s
    best = max((rate for level, rate in rates.items() if level <= job.num_gpus), default=0.0)
    faster = [level for level, rate in rates.items() if level > job.num_gpus and rate > best]
    if not faster and measured.probed_to < inf and (unknown := next_level(state, spec)) > job.num_gpus:
        faster = [unknown]
    usable = [level for level in faster if level <= spec.most_gpus and allowed.allows(level)]
    return min(usable, default=None)
