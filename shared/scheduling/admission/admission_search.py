"""The search for one more promise: around the schedules as they are, or with all promised jobs filled anew.

Both answer alike for a quote and its submission, and neither turns from yes to no with more time, less work or more
GPUs (docs/adr/0040). Which schedules keep the new promise is a separate question: all jobs are filled anew with it
where that saves GPU-seconds. The effort is counted in fillings, never in seconds, so that the same question about the
same plan always has the same answer.
"""

import math
from dataclasses import replace

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.filling_trials import FillingTrials, Outcomes
from elasticflow.shared.scheduling.admission.proposal import Proposal
from elasticflow.shared.scheduling.availability.availability_profile import (
    copy_into,
    empty_availability_profile,
)
from elasticflow.shared.scheduling.availability.fill_many_jobs import (
    fill_one_more,
    gather_schedules,
    rows_that_differ,
    total_gpu_seconds,
)
from elasticflow.shared.scheduling.compiled.compile import Integers
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, gpu_seconds

MANY_JOBS = 512  # no trial is made beside more
MAX_JOBS_TO_REPLAN = 256  # promised jobs that are filled anew although the arriving job fits around them
WORTH_REPLANNING = 0.01  # of all GPU-seconds: schedules that change have to be recorded


class AdmissionSearch:
    """What can be promised beside one unchanged plan, with a bounded number of fillings.

    max_jobs: no trial is made beside more promised jobs. All numbers of fillings are in proportion to it.
    budget: once the searches beside the plan have cost more fillings, no trial is made either.
    """

    def __init__(self, plan: AdmissionPlan, max_jobs: int = MANY_JOBS, *, budget: float = math.inf) -> None:
        self._budget = budget
        self._plan, self._availability_of_plan = plan, plan.availability
        self._max_fillings = _fillings_of_trial(len(plan.order), max_jobs)
        self._max_fillings_for_order = 2 * max_jobs
        self._known: dict[SchedulableJob, Outcomes] = {}
        self._orders: dict[int, Integers] = {}

    def propose(self, job: SchedulableJob) -> Proposal | None:
        """Return a way to promise `job` that makes no other job late, or None. Valid until the plan changes."""
        with self._plan.with_candidate(job) as row:
            around, trials = insert_around(self._plan, row, job), self._trials(row, job)
            if around is not None:
                return self._saving(around, trials, row, job) or around
            sufficient = trials.sufficient()
            if sufficient is None or not (trials.fill(trials.as_asked) or trials.fill(sufficient)):
                return None
            return self._proposal_of_filled(row, job)

    def fits(self, job: SchedulableJob) -> bool:
        """Whether `propose` would find a proposal."""
        with self._plan.with_candidate(job) as row:
            return insert_around(self._plan, row, job) is not None or self._trials(row, job).sufficient() is not None

    def earliest_deadline_s(self, job: SchedulableJob) -> float | None:
        """The earliest deadline that is accepted now, in whole seconds; one second less is rejected. None if there is
        none.
        """
        with self._plan.with_candidate(replace(job, deadline_s=math.inf)) as row:
            earliest_s = self._trials(row, job).earliest_deadline_s()
            return float(math.ceil(earliest_s)) if earliest_s < math.inf else None

    def most_iterations(self, job: SchedulableJob) -> int:
        """A number of iterations, close to the highest, that fits by the deadline of the job; 0 if none was found."""
        with self._plan.with_candidate(job) as row:
            most = int(min(self._trials(row, job).most_iterations(), job.remaining_iterations))
        return most if most and self.fits(replace(job, remaining_iterations=float(most))) else 0

    def _trials(self, row: int, job: SchedulableJob) -> FillingTrials:
        assert self._plan.availability is self._availability_of_plan, "the plan has changed since"
        alike = replace(job, job_id="", remaining_iterations=0.0, deadline_s=math.inf)
        outcomes = self._known.setdefault(alike, {})
        max_fillings = self._max_fillings if self._plan.num_fillings < self._budget else 0
        return FillingTrials(self._plan, row, self._order_on, max_fillings, outcomes)

    def _order_on(self, num_gpus: int) -> Integers:
        """All promised jobs, if possible in an order in which they fit these GPUs. It spares each trial that search."""
        if num_gpus not in self._orders:
            order = self._plan.order.copy()
            self._plan.fill_anew(order, self._max_fillings_for_order, num_gpus)
            self._orders[num_gpus] = order
        return self._orders[num_gpus]

    def _saving(self, around: Proposal, trials: FillingTrials, row: int, job: SchedulableJob) -> Proposal | None:
        """A proposal that saves GPU-seconds compared with `around`."""
        plan = self._plan
        if len(plan.order) > MAX_JOBS_TO_REPLAN or not trials.fill(trials.as_asked):
            return None
        before = total_gpu_seconds(plan.table.schedules, plan.order) + gpu_seconds(around.schedule)
        after = total_gpu_seconds(plan.filled, np.append(plan.order, row))
        return self._proposal_of_filled(row, job) if after < (1.0 - WORTH_REPLANNING) * before else None

    def _proposal_of_filled(self, row: int, job: SchedulableJob) -> Proposal:
        plan = self._plan
        availability = empty_availability_profile(len(plan.availability.start_B))
        copy_into(availability, plan.scratch_availability)
        rows = np.append(rows_that_differ(plan.table.schedules, plan.filled, plan.order), row)
        return Proposal(job=job, rows=rows, found=gather_schedules(plan.filled, rows), availability=availability)


def _fillings_of_trial(num_promised: int, max_jobs: int) -> int:
    """Each job once and a quarter of `max_jobs` more. Beside few jobs more still: each order of them costs little."""
    if num_promised >= max_jobs:
        return 0
    return max(num_promised + max_jobs // 4, max_jobs - 8 * num_promised)


def insert_around(plan: AdmissionPlan, row: int, job: SchedulableJob) -> Proposal | None:
    """Insert the candidate without moving a job. Exact: more time, less work or more GPUs never hurt."""
    availability = empty_availability_profile(len(plan.availability.start_B))
    if not fill_one_more(plan.availability, availability, plan.filled, plan.table.jobs, row, plan.scratch_arrays):
        return None
    rows = np.array([row], np.int64)
    return Proposal(job=job, rows=rows, found=gather_schedules(plan.filled, rows), availability=availability)
