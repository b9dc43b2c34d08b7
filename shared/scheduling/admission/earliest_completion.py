"""Earliest completion of one more job beside a plan: from when, until when, and how many iterations.

No function here changes the plan. Deadlines are whole seconds.
"""

import math
from dataclasses import replace

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.availability.availability_profile import AvailabilityProfile, sweep
from elasticflow.shared.scheduling.availability.fill_many_jobs import write_segments
from elasticflow.shared.scheduling.availability.fill_one_job import (
    Limits,
    earliest_end_s,
    fill,
    minimum_share,
    most_iterations,
)
from elasticflow.shared.scheduling.availability.plan_repair import trim_to_remaining_work
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, Schedule, end_s, schedule_of


def earliest_deadline_around_s(plan: AdmissionPlan, job: SchedulableJob) -> float | None:
    """The earliest deadline that moves no other job: fast to compute, and never too early."""
    ends_s = _earliest_end_s(plan, job, plan.availability)
    return None if ends_s is None else float(math.ceil(ends_s))


def earliest_end_alone_s(plan: AdmissionPlan, job: SchedulableJob) -> float | None:
    """The earliest end of the job on an empty pool; None if it never ends."""
    return _earliest_end_s(plan, job, _empty(plan))


def most_iterations_by(plan: AdmissionPlan, job: SchedulableJob) -> int:
    """The most iterations that can be promised by the deadline without moving another job; 0 if none."""
    with plan.with_candidate(job) as row:
        work = plan.scratch_arrays
        return most_iterations(plan.availability, plan.table.jobs, row, job.deadline_s, work.found, work.memory)


def earliest_ends_s(plan: AdmissionPlan, row: int, by_s: float) -> tuple[float, float]:
    """The earliest end of the candidate in this row, on an empty pool and without moving another job; inf if later
    than by_s.
    """
    work, jobs = plan.scratch_arrays, plan.table.jobs
    alone_s = earliest_end_s(_empty(plan), jobs, row, by_s, work.found, work.memory)
    if alone_s == math.inf:
        return math.inf, math.inf
    return alone_s, earliest_end_s(plan.availability, jobs, row, by_s, work.found, work.memory)


def earliest_end_from_s(plan: AdmissionPlan, job: SchedulableJob, start_s: float) -> float | None:
    """The earliest end of a job that holds no GPU before start_s and moves no other job; None if it never ends."""
    schedule = _schedule_from(plan, replace(job, deadline_s=math.inf), start_s, fastest=True)
    return None if schedule is None else end_s(schedule)


def schedule_from(plan: AdmissionPlan, job: SchedulableJob, start_s: float) -> Schedule | None:
    """The minimum satisfactory share of a job that holds no GPU before start_s and moves no other job; None if it is
    late.
    """
    return _schedule_from(plan, job, start_s, fastest=False)


def end_under_s(plan: AdmissionPlan, job: SchedulableJob, schedule: Schedule) -> float:
    """When the job ends under a schedule; inf if the schedule does not complete the remaining work."""
    with plan.with_candidate(job) as row:
        plan.table.write_schedule(row, [number for segment in schedule for number in segment])
        ends_s = trim_to_remaining_work(plan.table.schedules, plan.table.jobs, row, True, plan.now_s)
        return ends_s if ends_s <= (end_s(schedule) if schedule else plan.now_s) else math.inf


def _earliest_end_s(plan: AdmissionPlan, job: SchedulableJob, beside: AvailabilityProfile) -> float | None:
    with plan.with_candidate(job) as row:
        work = plan.scratch_arrays
        ends_s = earliest_end_s(beside, plan.table.jobs, row, math.inf, work.found, work.memory)
        return ends_s if ends_s < math.inf else None


def _empty(plan: AdmissionPlan) -> AvailabilityProfile:
    sweep(plan.scratch_availability, plan.table.schedules, plan.gone, plan.now_s, plan.num_gpus)
    return plan.scratch_availability


def _schedule_from(plan: AdmissionPlan, job: SchedulableJob, start_s: float, *, fastest: bool) -> Schedule | None:
    with plan.with_candidate(job) as row:
        jobs, work, later = plan.table.jobs, plan.scratch_arrays, plan.scratch_availability
        sweep(later, plan.table.schedules, plan.scheduled, start_s, plan.num_gpus)
        if fastest:
            cap = int(jobs.num_levels_J[row]) - 1
            count = fill(later, jobs, row, Limits(cap, job.deadline_s), work.found, work.memory)
        else:
            count = minimum_share(later, jobs, row, job.deadline_s, work)
        if count < 0:
            return None
        write_segments(plan.filled, row, work.found, count)
        return schedule_of(plan.filled, row)
