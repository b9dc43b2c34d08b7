"""Trying harder before a job counts as not fitting: many ways to make room, none of which knows when it is due.

A job is promised if it fits around all others, or if one of the `ways` ends in time. So the earliest deadline is the
end of the way that ends first, and a later one is never refused (docs/adr/0017). How much is tried is counted in ways,
never in seconds: the same question about the same plan has the same answer again.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.proposal import Proposal
from shared.scheduling.quoting import earliest_deadline_around_s, earliest_end_alone_s
from shared.scheduling.room import around, filled_anew, is_overloaded
from shared.scheduling.ways import Way, fill_in_way, ways

MANY_WAYS = 216


class Insistence:
    """What can be promised beside a plan with that much effort."""

    def __init__(self, plan: AdmissionPlan, num_ways: int = MANY_WAYS) -> None:
        self._plan, self._num_ways = plan, num_ways

    def propose(self, job: SchedulableJob) -> Proposal | None:
        """A way to promise `job` too that makes no other job late, or None. Good until the plan changes."""
        with self._plan.trying(job) as row:
            return around(self._plan, row, job) or self._making_room(row, job)

    def earliest_deadline_s(self, job: SchedulableJob) -> float | None:
        """In whole seconds: it is accepted now, and one second less is refused; None if none is."""
        plan = self._plan
        earliest_s, alone_s = earliest_deadline_around_s(plan, job), earliest_end_alone_s(plan, job)
        if earliest_s is None or alone_s is None:
            return None
        with plan.trying(replace(job, deadline_s=math.inf)) as row:
            for way in self._ways():
                while alone_s <= (sooner_s := earliest_s - 1.0):
                    ends_s = self._end_s(way, row, sooner_s)
                    if ends_s > sooner_s:
                        break
                    earliest_s = float(math.ceil(ends_s))
        return earliest_s

    def _making_room(self, row: int, job: SchedulableJob) -> Proposal | None:
        """The first way in which it ends in time."""
        if is_overloaded(self._plan, row):
            return None
        for way in self._ways():
            if self._end_s(way, row, job.deadline_s) < math.inf:
                return filled_anew(self._plan, row, job, way.order_K[way.num_kept :])
        return None

    def _ways(self) -> Iterator[Way]:
        jobs, order_K = self._plan.table.jobs, self._plan.order
        fastest_K = jobs.rates_JL[order_K, jobs.num_levels_J[order_K] - 1]
        latest_start_s_K = jobs.deadline_J[order_K] - jobs.remaining_J[order_K] / fastest_K - self._plan.now_s
        return ways(order_K, latest_start_s_K, self._num_ways)

    def _end_s(self, way: Way, row: int, by_s: float) -> float:
        """When a job that is tried ends in a way; inf if not by then, or if one that is promised would be late."""
        plan = self._plan
        return fill_in_way(
            plan.other_profile,
            plan.table.schedules,
            plan.filled,
            plan.table.jobs,
            plan.settled,
            way,
            row,
            by_s,
            plan.now_s,
            plan.num_gpus,
            plan.workspace,
        )
