"""Insertion of one more job into a plan: around all schedules, by deadline with later jobs refilled, or provably
impossible.
"""

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import MAX_FILL_ORDERS, AdmissionPlan
from elasticflow.shared.scheduling.admission.proposal import Proposal
from elasticflow.shared.scheduling.availability.availability_profile import (
    copy_into,
    empty_availability_profile,
)
from elasticflow.shared.scheduling.availability.fill_many_jobs import (
    fill_one_more,
    gather_schedules,
    overloaded,
    rows_that_differ,
)
from elasticflow.shared.scheduling.availability.fill_one_job import minimum_share
from elasticflow.shared.scheduling.compiled.compile import Integers
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob


def insert_around(plan: AdmissionPlan, row: int, job: SchedulableJob) -> Proposal | None:
    """Insert the candidate without moving a job. Exact: more time, less work or more GPUs never hurt."""
    availability = empty_availability_profile(len(plan.availability.start_B))
    if not fill_one_more(plan.availability, availability, plan.filled, plan.table.jobs, row, plan.scratch_arrays):
        return None
    rows = np.array([row], np.int64)
    return Proposal(job=job, rows=rows, found=gather_schedules(plan.filled, rows), availability=availability)


def fits_around(plan: AdmissionPlan, row: int) -> bool:
    """Whether `insert_around` would succeed."""
    jobs, work = plan.table.jobs, plan.scratch_arrays
    by_s = float(jobs.deadline_J[row])
    return minimum_share(plan.availability, jobs, row, by_s, work.found, work.other, work.memory) >= 0


def insert_by_deadline(plan: AdmissionPlan, row: int, job: SchedulableJob) -> Proposal | None:
    """Insert the candidate at its position by deadline and refill the jobs behind it, or all jobs if that fails.

    Not monotone: with a later deadline the candidate has another position and takes GPUs that other jobs need.
    """
    position = plan.position(row)
    order = np.insert(plan.order, position, row)
    num_kept = plan.refill(order, position)
    if num_kept < 0:
        num_kept = plan.refill(order, 0, max_orders=MAX_FILL_ORDERS - 1)
    if num_kept < 0:
        return None
    anew = order[num_kept:]
    return proposal_of_refilled(plan, row, job, anew[anew != row])


def proposal_of_refilled(plan: AdmissionPlan, row: int, job: SchedulableJob, anew: Integers) -> Proposal:
    """The proposal for a candidate and the rows that were just refilled with it."""
    availability = empty_availability_profile(len(plan.availability.start_B))
    copy_into(availability, plan.scratch_availability)
    rows = np.append(rows_that_differ(plan.table.schedules, plan.filled, anew), row)
    return Proposal(job=job, rows=rows, found=gather_schedules(plan.filled, rows), availability=availability)


def is_overloaded(plan: AdmissionPlan, row: int) -> bool:
    """Whether lower bounds on GPU-seconds prove that the candidate cannot be promised."""
    return overloaded(plan.table.jobs, plan.order, row, plan.position(row), plan.now_s, plan.num_gpus)
