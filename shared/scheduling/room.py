"""Room for one more promise beside a plan: without moving anybody, by moving who is due later, or certainly none."""

import numpy as np

from shared.scheduling.admission_plan import TRIES, AdmissionPlan
from shared.scheduling.compiled import Integers
from shared.scheduling.filling import minimum_share
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.planning import fill_around, overloaded, picked, unlike
from shared.scheduling.profile import copy_into, empty_profile
from shared.scheduling.proposal import Proposal


def around(plan: AdmissionPlan, row: int, job: SchedulableJob) -> Proposal | None:
    """A job that is tried, without moving anybody: exact, so more time, less work or more GPUs never hurt."""
    profile = empty_profile(len(plan.profile.start_B))
    if not fill_around(plan.profile, profile, plan.filled, plan.table.jobs, row, plan.workspace):
        return None
    rows = np.array([row], np.int64)
    return Proposal(job=job, rows=rows, found=picked(plan.filled, rows), profile=profile)


def fits_around(plan: AdmissionPlan, row: int) -> bool:
    """Whether there is that."""
    jobs, work = plan.table.jobs, plan.workspace
    by_s = float(jobs.deadline_J[row])
    return minimum_share(plan.profile, jobs, row, by_s, work.found, work.other, work.memory) >= 0


def by_deadline(plan: AdmissionPlan, row: int, job: SchedulableJob) -> Proposal | None:
    """A job that is tried, filled at its own place by deadline, and those behind it anew; where that fails, all of
    them. Not monotone: with more time it has another place, and takes what others need."""
    position = plan.position(row)
    order = np.insert(plan.order, position, row)
    num_kept = plan.fill_anew(order, position)
    if num_kept < 0:
        num_kept = plan.fill_anew(order, 0, tries=TRIES - 1)
    if num_kept < 0:
        return None
    anew = order[num_kept:]
    return filled_anew(plan, row, job, anew[anew != row])


def filled_anew(plan: AdmissionPlan, row: int, job: SchedulableJob, anew: Integers) -> Proposal:
    """A job that is tried, and rows that were just filled anew with it."""
    profile = empty_profile(len(plan.profile.start_B))
    copy_into(profile, plan.other_profile)
    rows = np.append(unlike(plan.table.schedules, plan.filled, anew), row)
    return Proposal(job=job, rows=rows, found=picked(plan.filled, rows), profile=profile)


def is_overloaded(plan: AdmissionPlan, row: int) -> bool:
    """Whether lower bounds rule out that a job that is tried is promised too."""
    return overloaded(plan.table.jobs, plan.order, row, plan.position(row), plan.now_s, plan.num_gpus)
