"""The search for one more promise: alternative plans that do not depend on the arriving job.

A job is admitted if it fits around the current schedules or around those of an alternative plan. Filling one job is
exact, and the alternative plans exist before the job arrives. So more time, less work or more GPUs never turn an
admission into a rejection. The earliest deadline is the earliest end over all alternative plans (docs/adr/0017,
0030). The plans are generated when the first job needs them, by filling in other orders and then by neighborhood
search (docs/adr/0024). The effort is counted in fillings, never in seconds, so that the same question about the same
plan always has the same answer. Which schedules keep the new promise is a separate question from whether one exists.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.alternative_plans import (
    AlternativePlans,
    DestroySet,
    UsableGpus,
    alternative_plans,
    earliest_end_in_any_s,
    empty_alternative_plans,
    first_plan_that_fits,
    refill_leaving_free,
)
from elasticflow.shared.scheduling.admission.insertion import (
    Proposal,
    fits_around,
    insert_around,
    insert_by_deadline,
    is_overloaded,
    proposal_of_refilled,
)
from elasticflow.shared.scheduling.admission.neighborhood_search import (
    CurrentPlan,
    destroy_sets,
    search_neighborhoods,
)
from elasticflow.shared.scheduling.availability.availability_profile import (
    AvailabilityProfile,
    copy_into,
    empty_availability_profile,
    sweep,
)
from elasticflow.shared.scheduling.availability.earliest_completion import (
    earliest_deadline_around_s,
    earliest_end_alone_s,
)
from elasticflow.shared.scheduling.availability.fill_many_jobs import fill_one_more, rows_that_differ
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob

MANY_FILLINGS = 4_096
MAX_JOBS_TO_SEARCH = 128  # promised jobs; with more of them a decision already takes long


class _PlanBatch(NamedTuple):
    """Alternative plans that were generated together.

    destroy_set: the jobs that were filled again in all of them; None: neighborhood search chose the jobs for each
    plan.
    """

    found: AlternativePlans
    usable: UsableGpus
    destroy_set: DestroySet | None


class AdmissionSearch:
    """What can be promised beside one unchanged plan, with a bounded number of fillings."""

    def __init__(self, plan: AdmissionPlan, max_fillings: int = MANY_FILLINGS) -> None:
        self._plan, self._availability_of_plan = plan, plan.availability
        self._most_fillings = max_fillings
        self._memory = empty_alternative_plans(len(plan.availability.start_B))
        self._batches: list[_PlanBatch] = []
        self._remaining_batches = self._generate_batches()

    def propose(self, job: SchedulableJob) -> Proposal | None:
        """Return a way to promise `job` that makes no other job late, or None. Valid until the plan changes."""
        with self._plan.with_candidate(job) as row:
            return insert_around(self._plan, row, job) or self._with_alternative_plan(row, job)

    def earliest_deadline_s(self, job: SchedulableJob) -> float | None:
        """The earliest deadline that is accepted now, in whole seconds; one second less is rejected. None if there is
        none.
        """
        plan = self._plan
        earliest_s, alone_s = earliest_deadline_around_s(plan, job), earliest_end_alone_s(plan, job)
        if earliest_s is None or alone_s is None:
            return None
        with plan.with_candidate(replace(job, deadline_s=math.inf)) as row:
            alternative_plans = self._alternative_plans()
            while alone_s <= earliest_s - 1.0 and (batch := next(alternative_plans, None)) is not None:
                ends_s = earliest_end_in_any_s(batch.found, plan.table.jobs, row, earliest_s, plan.scratch_arrays)
                earliest_s = float(math.ceil(ends_s))
        return earliest_s

    def fits(self, job: SchedulableJob) -> bool:
        """Whether `propose` would find a proposal."""
        plan = self._plan
        with plan.with_candidate(job) as row:
            return fits_around(plan, row) or self._alternative_plan_for(row) is not None

    def _with_alternative_plan(self, row: int, job: SchedulableJob) -> Proposal | None:
        """A proposal in an alternative plan in which the job fits."""
        there = self._alternative_plan_for(row)
        return there and (insert_by_deadline(self._plan, row, job) or self._in_alternative_plan(row, job, *there))

    def _alternative_plan_for(self, row: int) -> tuple[_PlanBatch, int] | None:
        """The first alternative plan in which the candidate row meets its deadline."""
        plan = self._plan
        if is_overloaded(plan, row):
            return None
        for batch in self._alternative_plans():
            first = first_plan_that_fits(batch.found, plan.table.jobs, row, plan.scratch_arrays)
            if first >= 0:
                return batch, first
        return None

    def _in_alternative_plan(self, row: int, job: SchedulableJob, batch: _PlanBatch, plan_index: int) -> Proposal:
        """Give the job its minimum share beside the kept schedules and fill the others again behind it.

        If one of the others does not fit then, rebuild the alternative plan with the job inserted.
        """
        plan = self._plan
        jobs, filled = plan.table.jobs, plan.filled
        availability, work = plan.scratch_availability, plan.scratch_arrays
        destroy_set = batch.destroy_set or self._destroy_set_of_search(batch, plan_index)
        if not (
            fill_one_more(self._free_beside_kept(destroy_set), availability, filled, jobs, row, work)
            and refill_leaving_free(availability, filled, jobs, destroy_set, 0, plan.now_s, 0, work)[0]
        ):
            remaining = self._rebuild_plan(batch, plan_index)
            fits = fill_one_more(remaining, availability, filled, jobs, row, work)
            assert fits, "the job fitted into this plan before"
        return proposal_of_refilled(plan, row, job, destroy_set.order_K[destroy_set.num_kept :])

    def _rebuild_plan(self, batch: _PlanBatch, plan_index: int) -> AvailabilityProfile:
        """The GPUs that one alternative plan leaves free; its schedules are left in `filled`."""
        plan = self._plan
        if batch.destroy_set is None:
            self._search(batch.usable, plan_index + 1)
            remaining = empty_availability_profile(len(plan.availability.start_B))
            copy_into(remaining, plan.scratch_availability)
            return remaining
        num_gpus, until_s = int(batch.found.num_gpus_C[plan_index]), float(batch.found.until_s_C[plan_index])
        remaining, jobs = self._free_beside_kept(batch.destroy_set), plan.table.jobs
        num_always_free = batch.usable.num_always_free
        refill_leaving_free(
            remaining,
            plan.filled,
            jobs,
            batch.destroy_set,
            num_gpus,
            until_s,
            num_always_free,
            plan.scratch_arrays,
        )
        return remaining

    def _destroy_set_of_search(self, batch: _PlanBatch, plan_index: int) -> DestroySet:
        """The jobs that neighborhood search moved for one alternative plan, by deadline."""
        plan = self._plan
        self._search(batch.usable, plan_index + 1)
        moved = rows_that_differ(plan.table.schedules, plan.filled, plan.order)
        kept = plan.order[~np.isin(plan.order, moved)]
        return DestroySet(np.concatenate((kept, moved)), len(kept))

    def _alternative_plans(self) -> Iterator[_PlanBatch]:
        """Yield the batches that exist, then newly generated ones."""
        assert self._plan.availability is self._availability_of_plan, "the plan has changed since"
        yield from self._batches
        for batch in self._remaining_batches:
            self._batches.append(batch)
            yield batch

    def _generate_batches(self) -> Iterator[_PlanBatch]:
        """Generate batches until the budget of fillings is spent."""
        plan, fillings_left = self._plan, self._most_fillings
        jobs, order_K = plan.table.jobs, plan.order
        window_s_K = jobs.deadline_J[order_K] - plan.now_s
        least_s_K = jobs.remaining_J[order_K] / jobs.rates_JL[order_K, jobs.num_levels_J[order_K] - 1]
        for usable in self._usable():
            for destroy_set in destroy_sets(order_K, window_s_K, least_s_K):
                if fillings_left <= 0:
                    break
                found, took = alternative_plans(
                    self._memory,
                    plan.scratch_availability,
                    self._free_beside_kept(destroy_set),
                    plan.filled,
                    plan.table.jobs,
                    destroy_set,
                    usable,
                    fillings_left,
                    plan.scratch_arrays,
                )
                fillings_left -= took
                yield _PlanBatch(found, usable, destroy_set)
        if 0 < len(order_K) <= MAX_JOBS_TO_SEARCH:
            for usable in self._usable():
                yield _PlanBatch(self._search(usable, len(self._memory.size_C)), usable, None)

    def _usable(self) -> Iterator[UsableGpus]:
        """GPUs for the jobs that are filled again: first as many as the schedules hold at most, then powers of two
        beyond that.

        A larger pool therefore offers at least the same alternative plans.
        """
        num_gpus, num_there = self._plan.num_needed, self._plan.num_gpus
        while 0 < num_gpus <= num_there:
            yield UsableGpus(num_gpus, num_there - num_gpus)
            num_gpus = 2 ** num_gpus.bit_length()

    def _search(self, usable: UsableGpus, max_plans: int) -> AlternativePlans:
        """The first plans that neighborhood search finds; the schedules of the last one are left in `filled`."""
        plan = self._plan
        return search_neighborhoods(
            self._memory,
            plan.scratch_availability,
            CurrentPlan(plan.availability, plan.table.schedules, plan.order),
            plan.filled,
            plan.table.jobs,
            usable,
            self._most_fillings,
            max_plans,
            np.random.default_rng(len(plan.order)),  # a quote and its submission see the same plans
            plan.scratch_arrays,
        )

    def _free_beside_kept(self, destroy_set: DestroySet) -> AvailabilityProfile:
        """The GPUs that the jobs outside the destroy set leave free."""
        plan = self._plan
        left = empty_availability_profile(len(plan.availability.start_B))
        rows = np.concatenate((plan.fixed, destroy_set.order_K[: destroy_set.num_kept]))
        sweep(left, plan.table.schedules, rows, plan.now_s, plan.num_gpus)
        return left
