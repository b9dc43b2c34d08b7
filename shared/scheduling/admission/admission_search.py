"""The search for one more promise: its earliest completion beside a plan, and whether the plan can keep it."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan, Proposal
from elasticflow.shared.scheduling.admission.whole_blocks import free_for_gangs, gangs_fit
from elasticflow.shared.scheduling.availability.availability_profile import (
    AvailabilityProfile,
    change,
    copy_into,
    empty_availability_profile,
    reserve,
    sweep,
)
from elasticflow.shared.scheduling.availability.fill import (
    Limits,
    earliest_end_s,
    fill,
    fill_one_more,
    gather_schedules,
    minimum_share,
    most_iterations,
    overloaded,
    rows_that_differ,
    total_gpu_seconds,
    write_segments,
)
from elasticflow.shared.scheduling.availability.plan_repair import trim_to_remaining_work
from elasticflow.shared.scheduling.compiled_loops import Integers
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, Schedule, end_s, gpu_seconds, schedule_of

# --- earliest completion ------------------------------------------------------------------------------
# Earliest completion of one more job beside a plan: from when, until when, and how many iterations.
#
# No function here changes the plan. Deadlines are whole seconds.


def earliest_deadline_around_s(plan: AdmissionPlan, job: SchedulableJob) -> float | None:
    """The earliest deadline that moves no other job: fast to compute, and never too early."""
    ends_s = _earliest_end_s(plan, job, available_to(plan, job))
    return None if ends_s is None else float(math.ceil(ends_s))


def earliest_end_alone_s(plan: AdmissionPlan, job: SchedulableJob) -> float | None:
    """The earliest end of the job on an empty pool; None if it never ends."""
    return _earliest_end_s(plan, job, _empty(plan))


def most_iterations_by(plan: AdmissionPlan, job: SchedulableJob) -> int:
    """The most iterations that can be promised by the deadline without moving another job; 0 if none."""
    available = available_to(plan, job)
    with plan.with_candidate(job) as row:
        work = plan.scratch_arrays
        return most_iterations(available, plan.table.jobs, row, job.deadline_s, work.found, work.memory)


def available_to(plan: AdmissionPlan, job: SchedulableJob) -> AvailabilityProfile:
    """The GPUs that the job may have without moving another one: those that are free, in whole blocks of nodes if each
    of its replicas needs one."""
    return plan.availability if job.gpus_per_replica == 1 else free_for_gangs(plan, job.gpus_per_replica)


def earliest_ends_s(plan: AdmissionPlan, row: int, by_s: float) -> tuple[float, float]:
    """The earliest end of the candidate in this row, on an empty pool and without moving another job; inf if later
    than by_s.
    """
    work, jobs = plan.scratch_arrays, plan.table.jobs
    alone_s = earliest_end_s(_empty(plan), jobs, row, by_s, work.found, work.memory)
    if alone_s == math.inf:
        return math.inf, math.inf
    return alone_s, earliest_end_s(plan.availability, jobs, row, by_s, work.found, work.memory)


def earliest_end_from_s(plan: AdmissionPlan, job: SchedulableJob, start_s: float) -> float | None:
    """The earliest end of a job that holds no GPU before start_s and moves no other job; None if it never ends."""
    schedule = _schedule_from(plan, replace(job, deadline_s=math.inf), start_s, fastest=True)
    return None if schedule is None else end_s(schedule)


def schedule_from(plan: AdmissionPlan, job: SchedulableJob, start_s: float) -> Schedule | None:
    """The minimum satisfactory share of a job that holds no GPU before start_s and moves no other job; None if it is
    late.
    """
    return _schedule_from(plan, job, start_s, fastest=False)


def end_under_s(plan: AdmissionPlan, job: SchedulableJob, schedule: Schedule) -> float:
    """When the job ends under a schedule; inf if the schedule does not complete the remaining work."""
    with plan.with_candidate(job) as row:
        plan.table.write_schedule(row, [number for segment in schedule for number in segment])
        ends_s = trim_to_remaining_work(plan.table.schedules, plan.table.jobs, row, True, plan.now_s)
        return ends_s if ends_s <= (end_s(schedule) if schedule else plan.now_s) else math.inf


def _earliest_end_s(plan: AdmissionPlan, job: SchedulableJob, beside: AvailabilityProfile) -> float | None:
    with plan.with_candidate(job) as row:
        work = plan.scratch_arrays
        ends_s = earliest_end_s(beside, plan.table.jobs, row, math.inf, work.found, work.memory)
        return ends_s if ends_s < math.inf else None


def _empty(plan: AdmissionPlan) -> AvailabilityProfile:
    sweep(plan.scratch_availability, plan.table.schedules, plan.gone, plan.now_s, plan.num_gpus)
    return plan.scratch_availability


def _schedule_from(plan: AdmissionPlan, job: SchedulableJob, start_s: float, *, fastest: bool) -> Schedule | None:
    with plan.with_candidate(job) as row:
        jobs, work, later = plan.table.jobs, plan.scratch_arrays, plan.scratch_availability
        sweep(later, plan.table.schedules, plan.scheduled, start_s, plan.num_gpus)
        if fastest:
            cap = int(jobs.num_levels_J[row]) - 1
            count = fill(later, jobs, row, Limits(cap, job.deadline_s), work.found, work.memory)
        else:
            count = minimum_share(later, jobs, row, job.deadline_s, work)
        if count < 0:
            return None
        write_segments(plan.filled, row, work.found, count)
        return schedule_of(plan.filled, row)


# --- admission search ---------------------------------------------------------------------------------
# The search for one more promise: around the schedules as they are, or with all promised jobs filled anew.
#
# Both answer alike for a quote and its submission, and neither turns from yes to no with more time, less work or more
# GPUs (docs/adr/0040). Which schedules keep the new promise is a separate question: all jobs are filled anew with it
# where that saves GPU-seconds. The effort is counted in fillings, never in seconds, so that the same question about the
# same plan always has the same answer.

# --- filling trials ------------------------------------------------------------------------------------
# Trials for one arriving job: at some deadline and with some work, can all promised jobs be filled anew with it?
#
# Filling in some orders is not exact: a trial with an easier job may fail where a harder one succeeds. So the trials
# lie on fixed lattices of deadlines and of amounts of work, and each bisection starts from the same question for
# every job. A success with more work counts for less work, and a success at a deadline counts for all later ones.
# Therefore more time or less work never turn a success into a failure.

_POINTS_PER_DOUBLING = 256
_NUM_POINTS = 16_384
_FIRST_WINDOW_S = 2.0**-10
_ABOUT = 8  # points, when a precise answer is not worth its trials


class Trial(NamedTuple):
    """The arriving job with this work is in time at this deadline, and so are all promised jobs."""

    iterations: float
    deadline_s: float
    num_gpus: int  # that were enough


Outcomes = dict[tuple[int, int], Trial | None]
"""By work and deadline on the lattices: the trial that succeeded, or None."""


class FillingTrials:
    """The trials for the candidate in one row of a plan. The work and the deadline in its row are those asked for.

    order_on: an order of the promised jobs to begin with, by the number of GPUs. max_fillings: of one trial; 0:
    none is made. known: outcomes for jobs that differ in work and deadline only; kept up to date.
    """

    def __init__(
        self, plan: AdmissionPlan, row: int, order_on: Callable[[int], Integers], max_fillings: int, known: Outcomes
    ) -> None:
        self._plan, self._row, self._order_on, self._max_fillings = plan, row, order_on, max_fillings
        jobs = plan.table.jobs
        self._iterations, self._deadline_s = float(jobs.remaining_J[row]), float(jobs.deadline_J[row])
        self._least_work = max(_index_of(self._iterations, math.ceil), 0)
        self._known = known

    @property
    def as_asked(self) -> Trial:
        """The trial with the work and the deadline asked for, on all GPUs."""
        return Trial(self._iterations, self._deadline_s, self._plan.num_gpus)

    @cached_property
    def _ends_s(self) -> tuple[float, float]:
        """The earliest ends with the work asked for: alone, and without moving another job."""
        return earliest_ends_s(self._plan, self._row, math.inf)

    def sufficient(self) -> Trial | None:
        """A trial that succeeds with no less work and by no later deadline than asked for."""
        if not self._ends_s[0] <= self._deadline_s < math.inf:
            return None
        latest = self._latest_deadline()
        first, trial = self._first_in_time(lambda low, high: low >= latest or high <= latest)
        return trial if first <= latest else None

    def earliest_deadline_s(self) -> float:
        """The earliest deadline at which `sufficient` finds a trial, or the job fits without one; inf: none."""
        return min(self._ends_s[1], self._deadline_at_s(self._first_in_time(_never)[0]))

    def most_iterations(self) -> float:
        """About the most work of a trial that succeeds by the last deadline on the lattice; 0: none."""
        latest = self._latest_deadline()
        if not 0 <= latest < _NUM_POINTS:
            return 0.0
        most = _bisected(lambda work: self._can_do(work, latest), lambda low, high: high - low <= _ABOUT)[0]
        return _number_at(most) if most >= 0 else 0.0

    def fill(self, trial: Trial) -> bool:
        """Fill all jobs anew; on success the plan's scratch memory holds the schedules."""
        plan, row = self._plan, self._row
        jobs = plan.table.jobs
        jobs.remaining_J[row], jobs.deadline_J[row] = trial.iterations, trial.deadline_s
        position = plan.position(row)
        fits = not overloaded(jobs, plan.order, row, position, plan.now_s, plan.num_gpus) and plan.fill_anew(
            np.insert(self._order_on(trial.num_gpus), position, row), self._max_fillings, trial.num_gpus
        )
        jobs.remaining_J[row], jobs.deadline_J[row] = self._iterations, self._deadline_s
        if fits:
            change(plan.scratch_availability, plan.now_s, math.inf, plan.num_gpus - trial.num_gpus)
        return fits

    def _latest_deadline(self) -> int:
        return _index_of((self._deadline_s - self._plan.now_s) / _FIRST_WINDOW_S, math.floor)

    def _deadline_at_s(self, index: int) -> float:
        return self._plan.now_s + _FIRST_WINDOW_S * _number_at(index) if index < _NUM_POINTS else math.inf

    def _first_in_time(self, is_decided: Callable[[int, int], bool]) -> tuple[int, Trial | None]:
        """The first deadline at which all promises hold, no more precise than the question needs, and its trial.

        A success counts for the later deadlines of this bisection, a failure for the earlier ones. Without fillings no
        deadline is in time.
        """
        if not self._max_fillings:
            return _NUM_POINTS, None
        least, (alone_s, around_s) = self._least_work, self._ends_s
        done, too_much, trial = -1, _NUM_POINTS, None

        def is_late(index: int) -> bool:
            nonlocal done, too_much, trial
            by_s = self._deadline_at_s(index)
            if not alone_s <= by_s < around_s:
                return by_s < around_s
            most, more = _bisected(
                lambda work: work <= done or (work < too_much and self._can_do(work, index)),
                lambda low, high: low >= least or high <= least,
            )
            if most < least:
                done = max(done, most)
                return True
            too_much, trial = min(too_much, more), self._known[most, index]
            return False

        return _bisected(is_late, is_decided)[1], trial

    def _can_do(self, work: int, index: int) -> bool:
        """Whether this point of both lattices is in time."""
        if (work, index) not in self._known:
            self._known[work, index] = self._succeeding(work, index)
        return self._known[work, index] is not None

    def _succeeding(self, work: int, index: int) -> Trial | None:
        iterations, by_s = _number_at(work), self._deadline_at_s(index)
        self._plan.table.jobs.remaining_J[self._row] = iterations
        alone_s, around_s = earliest_ends_s(self._plan, self._row, by_s)
        self._plan.table.jobs.remaining_J[self._row] = self._iterations
        if not alone_s <= by_s < around_s:
            return Trial(iterations, by_s, self._plan.num_gpus) if by_s >= around_s else None
        trials = (Trial(iterations, by_s, num_gpus) for num_gpus in self._usable_gpus())
        return next((trial for trial in trials if self.fill(trial)), None)

    def _usable_gpus(self) -> list[int]:
        """The numbers of GPUs to try: the most that the schedules hold, then powers of two beyond that. A larger pool
        offers at least the same trials.
        """
        first, last = self._plan.num_needed, self._plan.num_gpus
        powers = (2**power for power in range(first.bit_length(), last.bit_length()))
        return [num_gpus for num_gpus in (first, *powers) if 0 < num_gpus <= last] if self._max_fillings else []


def _never(low: int, high: int) -> bool:
    return False


def _number_at(index: int) -> float:
    return 2.0 ** (index / _POINTS_PER_DOUBLING)


def _index_of(number: float, rounded: Callable[[float], int]) -> int:
    if not 0.0 < number < math.inf:
        return _NUM_POINTS if number > 0.0 else -1
    return min(max(rounded(_POINTS_PER_DOUBLING * math.log2(number)), -1), _NUM_POINTS)


def _bisected(is_below: Callable[[int], bool], is_decided: Callable[[int, int], bool]) -> tuple[int, int]:
    """Two successive points of a lattice, the last one below and the first one not below; wider if that decides."""
    low, high = -1, _NUM_POINTS
    while high - low > 1 and not is_decided(low, high):
        middle = (low + high) // 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low, high


# --- admission search ----------------------------------------------------------------------------------

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
        if job.gpus_per_replica > 1 and (around := insert_whole_gangs(self._plan, job)) is not None:
            return around
        proposal = self._proposed(job)
        return proposal if proposal is None or gangs_fit(self._plan, proposal) else None

    def _proposed(self, job: SchedulableJob) -> Proposal | None:
        """The same by numbers of GPUs alone."""
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


def insert_whole_gangs(plan: AdmissionPlan, job: SchedulableJob) -> Proposal | None:
    """Insert a job with several GPUs for each replica where nodes have whole blocks free, and move no other."""
    available = free_for_gangs(plan, job.gpus_per_replica)
    with plan.with_candidate(job) as row:
        without_it = empty_availability_profile(len(available.start_B))
        if not fill_one_more(available, without_it, plan.filled, plan.table.jobs, row, plan.scratch_arrays):
            return None
        availability = empty_availability_profile(len(plan.availability.start_B))
        copy_into(availability, plan.availability)
        reserve(availability, plan.filled, row)
        rows = np.array([row], np.int64)
        found = Proposal(job=job, rows=rows, found=gather_schedules(plan.filled, rows), availability=availability)
    return found if gangs_fit(plan, found) else None
