"""Room made by filling the promised jobs anew by deadline, the newcomer at its own place among them.

A few orders, then a no: quick, and picky about large jobs in a hurry, which is good for the number of deadlines met
(docs/adr/0017). Not monotone: who is refused may be accepted for an earlier deadline.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from shared.scheduling.admission_plan import TRIES, AdmissionPlan
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.proposal import Proposal
from shared.scheduling.quoting import earliest_deadline_around_s, earliest_end_alone_s
from shared.scheduling.room import around, filled_anew, is_overloaded

Accepts = Callable[[SchedulableJob], bool]


class Greedy:
    """What a few orders of filling find beside a plan."""

    def __init__(self, plan: AdmissionPlan) -> None:
        self._plan = plan

    def propose(self, job: SchedulableJob, *, tries: int = TRIES) -> Proposal | None:
        """A way to promise `job` too that makes no other job late, or None. Good until the plan changes."""
        with self._plan.trying(job) as row:
            return around(self._plan, row, job) or self._making_room(row, job, tries)

    def admit(self, job: SchedulableJob) -> bool:
        """Promise `job` too, if no other job becomes late by it."""
        proposal = self.propose(job)
        if proposal is not None:
            self._plan.accept(proposal)
        return proposal is not None

    def earliest_deadline_s(self, job: SchedulableJob) -> float | None:
        """In whole seconds: it is accepted now, and one second less is refused; None if none is. An even earlier one
        may exist."""
        accepted_s, alone_s = (
            earliest_deadline_around_s(self._plan, job),
            earliest_end_alone_s(self._plan, job),
        )
        if accepted_s is None or alone_s is None:
            return None
        refused_s = math.ceil(alone_s) - 1.0
        accepted_s = narrowed(partial(self._accepts, tries=1), job, refused_s, accepted_s)
        return lowered(self._accepts, job, refused_s, accepted_s)

    def _accepts(self, job: SchedulableJob, tries: int = TRIES) -> bool:
        return self.propose(job, tries=tries) is not None

    def _making_room(self, row: int, job: SchedulableJob, tries: int) -> Proposal | None:
        """Fill all jobs anew, the newcomer among them."""
        plan = self._plan
        if is_overloaded(plan, row):
            return None
        position = plan.position(row)
        order = np.insert(plan.order, position, row)
        by_deadline = order.copy()
        num_kept = plan.fill_anew(order, position)  # those with earlier deadlines stay as they are
        if num_kept < 0 and tries > 1:
            num_kept = plan.fill_anew(order, 0, tries=tries - 1)
        if num_kept < 0 and tries > 1:
            num_kept = plan.fill_anew(order := by_deadline, position, hurried=row)
        if num_kept < 0:
            return None
        anew = order[num_kept:]
        return filled_anew(plan, row, job, anew[anew != row])


def lowered(accepts: Accepts, job: SchedulableJob, refused_s: float, accepted_s: float) -> float:
    """The earliest deadline from an accepted one on down: in steps that double for as long as it helps."""
    step_s = 1.0
    while accepted_s - step_s > refused_s:
        if not accepts(replace(job, deadline_s=accepted_s - step_s)):
            return narrowed(accepts, job, accepted_s - step_s, accepted_s)
        accepted_s, step_s = accepted_s - step_s, 2 * step_s
    return narrowed(accepts, job, refused_s, accepted_s)


def narrowed(accepts: Accepts, job: SchedulableJob, refused_s: float, accepted_s: float) -> float:
    """Bisect between a refused and an accepted deadline, to one second: the accepted one."""
    while accepted_s - refused_s > 1.0:
        middle_s = float((accepted_s + refused_s) // 2)
        if accepts(replace(job, deadline_s=middle_s)):
            accepted_s = middle_s
        else:
            refused_s = middle_s
    return accepted_s
