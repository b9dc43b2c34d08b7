"""Room for one more promise beside a plan, whoever looks for it: without moving anybody, or certainly none."""

from typing import Protocol

import numpy as np

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.compiled import Integers
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.planning import fill_around, overloaded, picked, unlike
from shared.scheduling.profile import copy_into, empty_profile
from shared.scheduling.proposal import Proposal


class Room(Protocol):
    """How hard room is looked for."""

    def propose(self, job: SchedulableJob) -> Proposal | None:
        """A way to promise `job` too that makes no other job late, or None. Good until the plan changes."""
        ...

    def makes_all_effort_for(self, job: SchedulableJob) -> bool:
        """Whether more is looked at than a few orders, of which one may miss what another deadline finds."""
        ...

    def earliest_deadline_s(self, job: SchedulableJob) -> float | None:
        """In whole seconds: what `propose` accepts, and one second less it refuses; None if there is none."""
        ...


def around(plan: AdmissionPlan, row: int, job: SchedulableJob) -> Proposal | None:
    """A job that is tried, without moving anybody: exact, so more time, less work or more GPUs never hurt."""
    profile = empty_profile(len(plan.profile.start_B))
    if not fill_around(plan.profile, profile, plan.filled, plan.table.jobs, row, plan.workspace):
        return None
    rows = np.array([row], np.int64)
    return Proposal(job=job, rows=rows, found=picked(plan.filled, rows), profile=profile)


def filled_anew(plan: AdmissionPlan, row: int, job: SchedulableJob, anew: Integers) -> Proposal:
    """A job that is tried, and rows that were just filled anew with it."""
    profile = empty_profile(len(plan.profile.start_B))
    copy_into(profile, plan.other_profile)
    rows = np.append(unlike(plan.table.schedules, plan.filled, anew), row)
    return Proposal(job=job, rows=rows, found=picked(plan.filled, rows), profile=profile)


def is_overloaded(plan: AdmissionPlan, row: int) -> bool:
    """Whether lower bounds rule out that a job that is tried is promised too."""
    position = plan.position(row)
    order = np.insert(plan.order, position, row)
    return overloaded(plan.table.jobs, order, position, plan.now_s, plan.num_gpus)
