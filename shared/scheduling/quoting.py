"""What could be promised to one more job beside a plan: from when on, until when, how much of it.

Nothing here changes the plan. Deadlines are in whole seconds.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from shared.scheduling.admission_plan import AdmissionPlan, Proposal
from shared.scheduling.filling import fill, minimum_share, most_iterations
from shared.scheduling.job_table import SchedulableJob, Schedule, end_s, schedule_of
from shared.scheduling.keeping import hold
from shared.scheduling.planning import write
from shared.scheduling.profile import sweep

Proposer = Callable[[SchedulableJob], Proposal | None]
NUM_WINDOWS = 16  # that are looked at before the search for the earliest deadline
_NOBODY = np.empty(0, np.int64)


def earliest_deadline_s(plan: AdmissionPlan, job: SchedulableJob, *harder: Proposer) -> float | None:
    """The earliest deadline that is accepted now; None if none is.

    harder: who accepts what `plan.propose` refuses, each more than the one before. What is returned the last of them
    accepts, and one second less it refuses. Where acceptance is not monotone in the deadline (greedy filling of several
    jobs does not rule that out) an even earlier one may exist.
    """
    accepted_s = earliest_deadline_around_s(plan, job)
    alone_s = _fastest_s(plan, job, alone=True)
    if accepted_s is None or alone_s is None:
        return None
    refused_s = math.ceil(alone_s) - 1.0
    if harder:
        accepted_s = _sooner(plan, job, alone_s, accepted_s)
    accepted_s = _narrowed(partial(plan.propose, tries=1), job, refused_s, accepted_s)
    for propose in (plan.propose, *harder):
        accepted_s = _lowered(propose, job, refused_s, accepted_s)
    return accepted_s


def earliest_deadline_around_s(plan: AdmissionPlan, job: SchedulableJob) -> float | None:
    """The earliest deadline that moves no other job: cheap, and never too early."""
    fastest_s = _fastest_s(plan, job, alone=False)
    return None if fastest_s is None else float(math.ceil(fastest_s))


def most_iterations_by(plan: AdmissionPlan, job: SchedulableJob) -> int:
    """As many iterations as would be promised by the deadline without moving any other; 0 if not one."""
    with plan.trying(job) as row:
        work = plan.workspace
        return most_iterations(plan.profile, plan.table.jobs, row, job.deadline_s, work.found, work.memory)


def earliest_end_from_s(plan: AdmissionPlan, job: SchedulableJob, start_s: float) -> float | None:
    """When a job would end that is to hold nothing before an instant and moves no other; None if never."""
    schedule = _schedule_from(plan, replace(job, deadline_s=math.inf), start_s, fastest=True)
    return None if schedule is None else end_s(schedule)


def schedule_from(plan: AdmissionPlan, job: SchedulableJob, start_s: float) -> Schedule | None:
    """Its minimum share on time if it is to hold nothing before an instant and moves no other."""
    return _schedule_from(plan, job, start_s, fastest=False)


def keeps(plan: AdmissionPlan, job: SchedulableJob, schedule: Schedule) -> bool:
    """Whether the job would end on time under a schedule."""
    with plan.trying(job) as row:
        plan.table.write_schedule(row, [number for segment in schedule for number in segment])
        ends_s = hold(plan.table.schedules, plan.table.jobs, row, plan.now_s)
        return ends_s <= min(job.deadline_s, end_s(schedule) if schedule else plan.now_s)


def _sooner(plan: AdmissionPlan, job: SchedulableJob, alone_s: float, accepted_s: float) -> float:
    """The first accepted deadline of some, from a window that is hardly enough to one that is.

    A job in a hurry can fit where one that may take its time is in the way of others: what is accepted early is not
    refused later.
    """
    now_s, windows_s = plan.now_s, (max(alone_s - plan.now_s, 1.0), max(accepted_s - plan.now_s, 1.0))
    ends_s: list[float] = np.ceil(now_s + np.geomspace(*windows_s, NUM_WINDOWS)[1:-1]).tolist()
    for sooner_s in ends_s:
        if sooner_s < accepted_s and plan.propose(replace(job, deadline_s=sooner_s)) is not None:
            return sooner_s
    return accepted_s


def _lowered(propose: Proposer, job: SchedulableJob, refused_s: float, accepted_s: float) -> float:
    """The earliest deadline from an accepted one on down: in steps that double for as long as it helps."""
    step_s = 1.0
    while accepted_s - step_s > refused_s:
        if propose(replace(job, deadline_s=accepted_s - step_s)) is None:
            return _narrowed(propose, job, accepted_s - step_s, accepted_s)
        accepted_s, step_s = accepted_s - step_s, 2 * step_s
    return _narrowed(propose, job, refused_s, accepted_s)


def _narrowed(propose: Proposer, job: SchedulableJob, refused_s: float, accepted_s: float) -> float:
    """Bisect between a refused and an accepted deadline, to one second: the accepted one."""
    while accepted_s - refused_s > 1.0:
        middle_s = float((accepted_s + refused_s) // 2)
        if propose(replace(job, deadline_s=middle_s)) is None:
            refused_s = middle_s
        else:
            accepted_s = middle_s
    return accepted_s


def _fastest_s(plan: AdmissionPlan, job: SchedulableJob, *, alone: bool) -> float | None:
    with plan.trying(replace(job, deadline_s=math.inf)) as row:
        profile, work = plan.profile, plan.workspace
        if alone:
            profile = plan.other_profile
            sweep(profile, plan.table.schedules, _NOBODY, plan.now_s, plan.num_gpus)
        cap = int(plan.table.jobs.num_levels_J[row]) - 1
        count = fill(profile, plan.table.jobs, row, cap, math.inf, work.found, work.memory)
        return None if count < 0 else (float(work.found.end_M[count - 1]) if count else plan.now_s)


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
