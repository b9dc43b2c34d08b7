"""Trying harder before a job counts as not fitting: other plans of the promised jobs, of which none knows who asks.

A job is promised if it fits around the schedules that stand, or around those of one of the `clearings`. Filling one job
is exact, and the clearings are there before it asks: so more time, less work or more GPUs never turn a yes into a no,
and the earliest deadline is the end in the clearing in which it ends first (docs/adr/0017, 0030). They are made when
the first job asks that needs them, for all that ask after it: by filling in other orders, then by local search
(docs/adr/0024). How many is counted in fillings, never in seconds: the same question about the same plan has the same
answer again. How a promise is arranged is another question than whether there is room for it.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.clearings import (
    Anew,
    Clearings,
    Usable,
    clear,
    clearings,
    earliest_end_in_any_s,
    empty_clearings,
    first_in_time,
)
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.local_search import Standing, search_clearings
from shared.scheduling.moving import moving
from shared.scheduling.planning import fill_around, unlike
from shared.scheduling.profile import Profile, copy_into, empty_profile, sweep
from shared.scheduling.proposal import Proposal
from shared.scheduling.quoting import earliest_deadline_around_s, earliest_end_alone_s
from shared.scheduling.room import around, by_deadline, filled_anew, fits_around, is_overloaded

MANY_FILLINGS = 4_096
MOST_JOBS_TO_SEARCH = 128  # promised; where there are more, a decision takes long enough without


class _Made(NamedTuple):
    """Clearings that were made together. anew: who was filled anew in them; None: whoever was in the way."""

    found: Clearings
    usable: Usable
    anew: Anew | None


class Insistence:
    """What can be promised beside a plan with that much effort, for as long as the plan does not change."""

    def __init__(self, plan: AdmissionPlan, most_fillings: int = MANY_FILLINGS) -> None:
        self._plan, self._standing = plan, plan.profile
        self._most_fillings = most_fillings
        self._memory = empty_clearings(len(plan.profile.start_B))
        self._made: list[_Made] = []
        self._to_make = self._making()

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
            clearings = self._clearings()
            while alone_s <= earliest_s - 1.0 and (made := next(clearings, None)) is not None:
                ends_s = earliest_end_in_any_s(made.found, plan.table.jobs, row, earliest_s, plan.workspace)
                earliest_s = float(math.ceil(ends_s))
        return earliest_s

    def has_room_for(self, job: SchedulableJob) -> bool:
        """Whether there is such a way."""
        plan = self._plan
        with plan.trying(job) as row:
            return fits_around(plan, row) or self._clearing_for(row) is not None

    def _making_room(self, row: int, job: SchedulableJob) -> Proposal | None:
        """Where one of the clearings does."""
        there = self._clearing_for(row)
        return there and (by_deadline(self._plan, row, job) or self._in_clearing(row, job, *there))

    def _clearing_for(self, row: int) -> tuple[_Made, int] | None:
        """The first in which one more job is in time."""
        plan = self._plan
        if is_overloaded(plan, row):
            return None
        for made in self._clearings():
            first = first_in_time(made.found, plan.table.jobs, row, plan.workspace)
            if first >= 0:
                return made, first
        return None

    def _in_clearing(self, row: int, job: SchedulableJob, made: _Made, clearing: int) -> Proposal:
        """Its minimum share among those that keep their schedules, the others filled anew behind it; or, where one of
        them does not fit then, the plan of that clearing made once more with the job in it."""
        plan = self._plan
        jobs, filled, profile, work = plan.table.jobs, plan.filled, plan.other_profile, plan.workspace
        anew = made.anew or self._moved_by_search(made, clearing)
        if not (
            fill_around(self._left_by_kept(anew), profile, filled, jobs, row, work)
            and clear(profile, filled, jobs, anew, 0, plan.now_s, 0, work)[0]
        ):
            cleared = self._made_again(made, clearing)
            fits = fill_around(cleared, profile, filled, jobs, row, work)
            assert fits, "it did a moment ago"
        return filled_anew(plan, row, job, anew.order_K[anew.num_kept :])

    def _made_again(self, made: _Made, clearing: int) -> Profile:
        """What one clearing leaves of all GPUs; its plan is left in the plan's memory."""
        plan = self._plan
        if made.anew is None:
            self._searched(made.usable, clearing + 1)
            cleared = empty_profile(len(plan.profile.start_B))
            copy_into(cleared, plan.other_profile)
            return cleared
        num_gpus, until_s = int(made.found.num_gpus_C[clearing]), float(made.found.until_s_C[clearing])
        cleared, jobs = self._left_by_kept(made.anew), plan.table.jobs
        num_beyond = made.usable.num_beyond
        clear(cleared, plan.filled, jobs, made.anew, num_gpus, until_s, num_beyond, plan.workspace)
        return cleared

    def _moved_by_search(self, made: _Made, clearing: int) -> Anew:
        """Those who had to move for one clearing, by deadline."""
        plan = self._plan
        self._searched(made.usable, clearing + 1)
        moved = unlike(plan.table.schedules, plan.filled, plan.order)
        kept = plan.order[~np.isin(plan.order, moved)]
        return Anew(np.concatenate((kept, moved)), len(kept))

    def _clearings(self) -> Iterator[_Made]:
        """Those that were made, then more."""
        assert self._plan.profile is self._standing, "the plan has changed since"
        yield from self._made
        for made in self._to_make:
            self._made.append(made)
            yield made

    def _making(self) -> Iterator[_Made]:
        """For as long as there is effort left."""
        plan, fillings_left = self._plan, self._most_fillings
        jobs, order_K = plan.table.jobs, plan.order
        window_s_K = jobs.deadline_J[order_K] - plan.now_s
        least_s_K = jobs.remaining_J[order_K] / jobs.rates_JL[order_K, jobs.num_levels_J[order_K] - 1]
        for usable in self._usable():
            for anew in moving(order_K, window_s_K, least_s_K):
                if fillings_left <= 0:
                    break
                found, took = clearings(
                    self._memory,
                    plan.other_profile,
                    self._left_by_kept(anew),
                    plan.filled,
                    plan.table.jobs,
                    anew,
                    usable,
                    fillings_left,
                    plan.workspace,
                )
                fillings_left -= took
                yield _Made(found, usable, anew)
        if 0 < len(order_K) <= MOST_JOBS_TO_SEARCH:
            for usable in self._usable():
                yield _Made(self._searched(usable, len(self._memory.size_C)), usable, None)

    def _usable(self) -> Iterator[Usable]:
        """GPUs for those who are filled anew: as many as the schedules hold at most, then powers of two beyond that, so
        that in a larger pool there are the same and more."""
        num_gpus, num_there = self._plan.num_needed, self._plan.num_gpus
        while 0 < num_gpus <= num_there:
            yield Usable(num_gpus, num_there - num_gpus)
            num_gpus = 2 ** num_gpus.bit_length()

    def _searched(self, usable: Usable, most_clearings: int) -> Clearings:
        """The first of those that local search finds; the plan of the last one is left in the plan's memory."""
        plan = self._plan
        return search_clearings(
            self._memory,
            plan.other_profile,
            Standing(plan.profile, plan.table.schedules, plan.order),
            plan.filled,
            plan.table.jobs,
            usable,
            self._most_fillings,
            most_clearings,
            np.random.default_rng(len(plan.order)),  # the same again for whoever takes a quote
            plan.workspace,
        )

    def _left_by_kept(self, anew: Anew) -> Profile:
        """Of all GPUs, by those who keep their schedules."""
        plan = self._plan
        left, kept = empty_profile(len(plan.profile.start_B)), anew.order_K[: anew.num_kept]
        rows = np.concatenate((plan.settled, kept))
        sweep(left, plan.table.schedules, rows, plan.now_s, plan.num_gpus)
        return left
