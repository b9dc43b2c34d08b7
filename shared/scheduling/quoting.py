"""What could be promised to one more job beside a plan: from when on, until when, how much of it.

Nothing here changes the plan. Deadlines are in whole seconds.
"""

import math
from dataclasses import replace

import numpy as np

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.filling import earliest_end_s, fill, minimum_share, most_iterations
from shared.scheduling.job_table import SchedulableJob, Schedule, end_s, schedule_of
from shared.scheduling.keeping import hold
from shared.scheduling.planning import write
from shared.scheduling.profile import Profile, sweep

_NOBODY = np.empty(0, np.int64)


def earliest_deadline_around_s(plan: AdmissionPlan, job: SchedulableJob) -> float | None:
    """The earliest deadline that moves no other job: cheap, and never too early."""
    ends_s = _earliest_end_s(plan, job, plan.profile)
    return None if ends_s is None else float(math.ceil(ends_s))


def earliest_end_alone_s(plan: AdmissionPlan, job: SchedulableJob) -> float | None:
    """When a job would end at the earliest if nothing was promised; None if never."""
    return _earliest_end_s(plan, job, _empty(plan))


def most_iterations_by(plan: AdmissionPlan, job: SchedulableJob) -> int:
    """As many iterations as would be promised by the deadline without moving any other; 0 if not one."""
    return _most_iterations_by(plan, job, plan.profile)


def most_iterations_alone_by(plan: AdmissionPlan, job: SchedulableJob) -> int:
    """As many as it could do by the deadline if nothing was promised."""
    return _most_iterations_by(plan, job, _empty(plan))


def earliest_end_from_s(plan: AdmissionPlan, job: SchedulableJob, start_s: float) -> float | None:
    """When a job would end that is to hold nothing before an instant and moves no other; None if never."""
    schedule = _schedule_from(plan, replace(job, deadline_s=math.inf), start_s, fastest=True)
    return None if schedule is None else end_s(schedule)


def schedule_from(plan: AdmissionPlan, job: SchedulableJob, start_s: float) -> Schedule | None:
    """Its minimum share on time if it is to hold nothing before an instant and moves no other."""
    return _schedule_from(plan, job, start_s, fastest=False)


def end_under_s(plan: AdmissionPlan, job: SchedulableJob, schedule: Schedule) -> float:
    """When a job would end under a schedule; inf if it does not do all that is left."""
    with plan.trying(job) as row:
        plan.table.write_schedule(row, [number for segment in schedule for number in segment])
        ends_s = hold(plan.table.schedules, plan.table.jobs, row, plan.now_s)
        return ends_s if ends_s <= (end_s(schedule) if schedule else plan.now_s) else math.inf


def _earliest_end_s(plan: AdmissionPlan, job: SchedulableJob, beside: Profile) -> float | None:
    with plan.trying(job) as row:
        work = plan.workspace
        ends_s = earliest_end_s(beside, plan.table.jobs, row, math.inf, work.found, work.memory)
        return ends_s if ends_s < math.inf else None


def _most_iterations_by(plan: AdmissionPlan, job: SchedulableJob, beside: Profile) -> int:
    with plan.trying(job) as row:
        work = plan.workspace
        return most_iterations(beside, plan.table.jobs, row, job.deadline_s, work.found, work.memory)


def _empty(plan: AdmissionPlan) -> Profile:
    sweep(plan.other_profile, plan.table.schedules, _NOBODY, plan.now_s, plan.num_gpus)
    return plan.other_profile


def _schedule_from(
    plan: AdmissionPlan, job: SchedulableJob, start_s: float, *, fastest: bool
) -> Schedule | None:
    with plan.trying(job) as row:
        jobs, work, later = plan.table.jobs, plan.workspace, plan.other_profile
        sweep(later, plan.table.schedules, plan.scheduled, start_s, plan.num_gpus)
        if fastest:
            cap = int(jobs.num_levels_J[row]) - 1
            count = fill(later, jobs, row, cap, job.deadline_s, work.found, work.memory)
        else:
            count = minimum_share(later, jobs, row, job.deadline_s, work.found, work.other, work.memory)
        if count < 0:
            return None
        write(plan.filled, row, work.found, count)
        return schedule_of(plan.filled, row)
