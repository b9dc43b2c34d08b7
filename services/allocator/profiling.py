"""What is measured for the scheduler: profiling runs of new jobs, and probes of more GPUs. Pure."""

# pyright: strict

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as remember
from typing import NamedTuple

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.events import ProfileCompleted
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.admission.planned_pool import (
    LONGEST_LOAN_S,
    PlannedPool,
    ProfilingLoan,
    loan_s,
    most_lent,
    planned_pool,
    promises_beside,
)
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    WORTHWHILE_SPEEDUP,
    level_beyond,
    most_useful,
    next_level,
    profile_known,
    resize_cost,
    resize_cost_of,
    unmeasured_types,
)
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.jobs import state_holders
from elasticflow.shared.state.fold.profiles import may_measure_virtual_nodes, on_first_type
from elasticflow.shared.state.gpu_types import parts, profiling_failure, submitted_spec
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import PoolState, largest_level, profiling_jobs, spec_of

_SHORT_WAIT_S = 60.0  # of a job that is not measured, for the end of one that would start over
UNDISTURBED_S = 15.0  # some dozens of steps on one number of GPUs; then the next profiling run may begin
RETRY_S = 5.0  # until GPUs are sought again for a job that got none; later after half its waiting time


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingRuns:
    """The promises on the GPUs that profiling runs leave, and the GPUs of these runs.

    A run that is complete keeps its GPUs for the milliseconds until admission has decided on its job.
    lent_until_s: as in `AllocationDecided`. next_at_s: when a loan ends, the next run begins beside the present ones,
    or a waiting one may get GPUs.
    """

    pool: PlannedPool
    num_gpus_by_job: Mapping[str, int]
    completed: tuple[ProfileCompleted, ...]
    lent_until_s: Mapping[str, float]
    next_at_s: float


class _Taken(NamedTuple):
    """The GPUs of some profiling runs: num_aside of them until all jobs end, and loans."""

    num_aside: int = 0
    loans: tuple[ProfilingLoan, ...] = ()

    @property
    def num_gpus(self) -> int:
        return self.num_aside + sum(loan.num_gpus for loan in self.loans)

    def with_aside(self, num_gpus: int) -> "_Taken":
        return self._replace(num_aside=self.num_aside + num_gpus)

    def with_loan(self, loan: ProfilingLoan) -> "_Taken":
        return self._replace(loans=(*self.loans, loan))


_Beside = Callable[[_Taken], PlannedPool | None]
"""The promises beside profiling runs; None if they break one."""


def profiling_runs(
    state: PoolState, now_s: float, cache: PlanningCache, held_back: Collection[str] = ()
) -> ProfilingRuns:
    """Present runs continue; the next one begins, oldest job first, when all of them are slow.

    A run gets GPUs that promises can do without until all jobs end; else some that they can lend (docs/adr/0112).
    held_back: jobs whose runs do not begin, see `runs_held_back`.
    """
    pool = whole = planned_pool(state, now_s, cache, loans=())

    @remember  # many jobs may ask for the same number
    def beside(taken: _Taken) -> PlannedPool | None:
        return promises_beside(whole, state, now_s, cache, num_aside=taken.num_aside, loans=taken.loans)

    taken, held, lent_until_s, completed = _Taken(), dict[str, int](), dict[str, float](), list[ProfileCompleted]()
    candidates, waiting = [job for job in _candidates(state) if job.job_id not in held_back], dict[str, float]()
    undisturbed_until_s, next_at_s = -math.inf, math.inf
    for job in candidates:
        level = num_gpus = _next_level(state, job)
        if level and level != job.num_gpus and now_s < undisturbed_until_s:
            next_at_s = min(next_at_s, undisturbed_until_s)
            waiting |= _loan_of(state, job)
            continue
        found = _lent(state, beside, taken, job, level)
        loan = _loan(state, job, level, taken.num_gpus, now_s) if found is None else None
        if loan is not None:
            found = beside(taken.with_loan(loan))
        if found is not None:
            undisturbed_until_s = max(undisturbed_until_s, _undisturbed_until_s(state, job, level, now_s))
        elif (profile := _completed_profile(state, job, now_s)) is not None:
            completed.append(profile)
            undisturbed_until_s, num_gpus, loan = math.inf, job.num_gpus, _loan_in_force(state, job, now_s)
            found = beside(taken.with_loan(loan) if loan else taken.with_aside(num_gpus)) if num_gpus else None
        elif level:
            next_at_s = min(next_at_s, now_s + max(RETRY_S, (now_s - job.decided_at_s) / 2.0))
        if found is not None:
            pool, held[job.job_id] = found, num_gpus
            taken = taken.with_loan(loan) if loan else taken.with_aside(num_gpus)
            if loan is not None:
                lent_until_s[job.job_id] = loan.until_s
    return ProfilingRuns(
        pool=pool,
        num_gpus_by_job=held,
        completed=tuple(completed),
        lent_until_s=_spent(state, candidates, now_s) | waiting | lent_until_s,
        next_at_s=min((next_at_s, *lent_until_s.values())),
    )


def types_to_measure(state: PoolState) -> dict[str, str]:
    """The GPU types on which profiling runs begin or continue, by job, where it is another one than before.

    A run leaves a type that is measured, gone, or not possible for the job; and one that lends it no GPU and has fewer
    free GPUs than another unknown type.
    """
    found, waiting = dict[str, str](), profiling_jobs(state.live_jobs)
    num_free = _num_free_by_type(state) if waiting else {}
    for job in waiting:
        spec, now_on = submitted_spec(job), spec_of(job).gpu_type
        unknown = unmeasured_types(state, spec)
        if not unknown or (now_on in unknown and job.num_gpus):
            continue
        freest = max(unknown, key=lambda each: (num_free[each], each == now_on))
        if freest != now_on:
            found[job.job_id] = freest
    return found


def runs_held_back(state: PoolState) -> frozenset[str]:
    """Jobs that wait, because the run of another one measures the virtual nodes of their profile on another type."""
    type_by_profile, found = dict[str, str](), set[str]()
    for job in sorted(profiling_jobs(state.live_jobs), key=lambda job: not job.num_gpus):
        spec = spec_of(job)
        if not may_measure_virtual_nodes(state, spec.measured_key) or profiling_failure(state, spec, spec.gpu_type):
            continue
        first = type_by_profile.setdefault(on_first_type(spec.measured_key), spec.gpu_type)
        if first != spec.gpu_type and not job.num_gpus:
            found.add(job.job_id)
    return frozenset(found)


def _num_free_by_type(state: PoolState) -> dict[str, int]:
    """GPUs that no share of the present allocation uses, by recorded type."""
    shares = Counter[str]()
    for job in state.live_jobs.values():
        shares[spec_of(job).gpu_type] += job.num_gpus
    return {gpu_type: part.num_gpus - shares[gpu_type] for gpu_type, part in parts(state).items()}


def _candidates(state: PoolState) -> list[Job]:
    """The oldest job of each unknown profile; those that are being measured come first."""
    jobs = dict[str, Job]()
    for job in profiling_jobs(state.live_jobs):
        if not profile_known(state, spec_of(job)) and not profiling_failure(state, spec_of(job), spec_of(job).gpu_type):
            jobs.setdefault(spec_of(job).measured_key, job)
    return sorted(jobs.values(), key=lambda job: not job.num_gpus or job.num_gpus != _next_level(state, job))


def _next_level(state: PoolState, job: Job) -> int:
    """GPUs of the next profiling run; 0 if this pool can measure no further level."""
    spec = spec_of(job)
    level = next_level(state, spec)
    return level if level <= _largest_level(state, spec) else 0


def _largest_level(state: PoolState, spec: JobSpec) -> int:
    """The largest number of GPUs within the job's range and the pool, of which each has work."""
    most = min(largest_level(state, spec), most_useful(state, spec))
    return most if spec.gpu_range.most is None else min(most, spec.gpu_range.most)


def _undisturbed_until_s(state: PoolState, job: Job, level: int, now_s: float) -> float:
    placed_at_s = job.placed_at_s if len(job.gpus) == job.num_gpus == level else now_s
    return placed_at_s + resize_cost_of(state, spec_of(job)).seconds(level) + UNDISTURBED_S


def _lent(state: PoolState, beside: _Beside, taken: _Taken, job: Job, level: int) -> PlannedPool | None:
    """The promises beside a profiling run, if they can do without its GPUs however long it takes; None if they cannot.

    The most GPUs that the whole run may need are set aside at once, so that other jobs shrink once and not at each
    level. Jobs that would start over keep their GPUs. Before any level is measured, only those do that end soon.
    taken: the GPUs of other profiling runs.
    """
    most = _largest_level(state, spec_of(job)) if level else -1
    is_first = level == spec_of(job).gpu_range.least
    unsaved = _num_unsaved(state)
    for num_kept in (unsaved, _num_unsaved(state, ends_within_s=_SHORT_WAIT_S)) if is_first else (unsaved,):
        aside = most
        while aside >= max(level, 1):
            fits = taken.num_gpus + aside + num_kept <= state.num_gpus or not num_kept
            pool = beside(taken.with_aside(aside)) if fits else None
            if pool is not None:
                return pool
            aside //= 2
    return None


def _num_unsaved(state: PoolState, *, ends_within_s: float = math.inf) -> int:
    """GPUs of jobs that would lose all their work; only those that end soon at their reported speed."""
    jobs = (job for job in state.live_jobs.values() if job.starts_over and job.unsaved_iterations)
    return sum(len(job.gpus) for job in jobs if _ends_within(job, ends_within_s))


def _ends_within(job: Job, seconds: float) -> bool:
    left = max(spec_of(job).max_iterations - job.iteration, 0)
    return seconds == math.inf or left <= (job.iterations_per_s or 0.0) * seconds


def _loan(state: PoolState, job: Job, level: int, num_held: int, now_s: float) -> ProfilingLoan | None:
    """What promises may lend to a profiling run on so many GPUs, besides those of other runs; None if nothing.

    Half of the GPUs go on with promises, and so do jobs that would start over. Only a run that began with a loan gets
    more GPUs that way: others end with those that are free, as soon. A run that has not ended with its loan gets more
    time, but not without end, and no second loan.
    """
    unsaved, until_s = _num_unsaved(state), state.lent_until_s.get(job.job_id)
    is_first = level == spec_of(job).gpu_range.least
    may_begin = 0 < level <= most_lent(state) and (is_first or until_s is not None)
    if not may_begin or (unsaved and num_held + level + unsaved > state.num_gpus):
        return None
    ends_s = now_s + loan_s(state, spec_of(job), level)
    if until_s is None or job.num_gpus not in (0, level):
        return ProfilingLoan(level, ends_s)
    if now_s < until_s:
        return ProfilingLoan(level, until_s if job.num_gpus else ends_s)
    # a start that is declared to be long has had its time by now (docs/adr/0119)
    late_s = resize_cost_of(state, spec_of(job)).seconds(level) - resize_cost(state).seconds(level)
    ends_s -= late_s
    may_last = job.num_gpus > 0 and ends_s <= job.placed_at_s + late_s + _longest_loan_s(state, job)
    return ProfilingLoan(level, ends_s) if may_last else None


def _longest_loan_s(state: PoolState, job: Job) -> float:
    """The first run of a profile also chooses its virtual nodes, in a quarter of its timeout (docs/adr/0110)."""
    spec = spec_of(job)
    if not may_measure_virtual_nodes(state, spec.measured_key):
        return LONGEST_LOAN_S
    return LONGEST_LOAN_S + state.config.timeouts_of(spec).further_measurement_s


def _loan_of(state: PoolState, job: Job) -> dict[str, float]:
    """The end of the loan with which its run began, by which it may get the next level."""
    until_s = state.lent_until_s.get(job.job_id)
    return {} if until_s is None else {job.job_id: until_s}


def _loan_in_force(state: PoolState, job: Job, now_s: float) -> ProfilingLoan | None:
    until_s = state.lent_until_s.get(job.job_id, -math.inf)
    return ProfilingLoan(job.num_gpus, until_s) if job.num_gpus and now_s < until_s else None


def _spent(state: PoolState, candidates: Sequence[Job], now_s: float) -> dict[str, float]:
    """The loans that have ended before their jobs were measured."""
    known = state.lent_until_s
    return {job.job_id: until_s for job in candidates if (until_s := known.get(job.job_id, math.inf)) <= now_s}


def _completed_profile(state: PoolState, job: Job, now_s: float) -> ProfileCompleted | None:
    """The profile of a run that gets no further level, because it is not worthwhile or cannot be lent.

    None while no level is measured.
    """
    spec = spec_of(job)
    measured = state.curves.get(spec.profile_key)
    if measured is None or not measured.iterations_per_s or not state.num_gpus:
        return None
    rates = dict(measured.iterations_per_s)
    return ProfileCompleted(
        profile_key=spec.profile_key,
        iterations_per_s=rates,
        measured_to=max(rates) if level_beyond(state, spec) else None,
        at_s=now_s,
    )


# --- scaling probes ------------------------------------------------------------------------------------
# Scaling probes: a job trains on more GPUs than its profile knows, where no other job can use them.
#
# A profiling run ends at the number of GPUs that the pool has, or can lend, at that time, or where its curve is flat.
# When more GPUs are idle later, a job that no known number of GPUs would make faster grows to the next one for a while.
# Its speed there is measured while it trains, for all jobs of its profile. Its promise is kept even if it makes no
# progress during the probe (docs/adr/0026, docs/adr/0110).

PROBE_S = 15.0  # of training there, until the speed is steady and reported


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingProbe:
    """A job on more GPUs than its profile knows, until its speed there should be known."""

    job_id: str
    num_gpus: int
    until_s: float


def probe_in_progress(state: PoolState, now_s: float) -> ScalingProbe | None:
    """The probe that has begun and is not measured yet."""
    for job, curve in _unknown_beyond(state):
        until_s = curve.probed_at_s + _lasts_s(state, job, job.num_gpus)
        if job.num_gpus > max(curve.iterations_per_s) and now_s < until_s:
            return ScalingProbe(job_id=job.job_id, num_gpus=job.num_gpus, until_s=until_s)
    return None


def next_probe(
    state: PoolState,
    pool: PlannedPool,
    shares: Mapping[str, int],
    num_idle: int,
    now_s: float,
    cache: PlanningCache | None = None,
) -> tuple[ScalingProbe, PlannedPool] | None:
    """A probe on idle GPUs, and the pool with the promises as they are planned beside it; None if no job qualifies.

    pool: without the probe. shares: the allocation; num_idle: GPUs that it leaves.
    """
    for job, curve in _unknown_beyond(state):
        num_gpus, held = level_beyond(state, spec_of(job)), len(job.own_gpus)
        is_new = curve.probed_to < num_gpus <= largest_level(state, spec_of(job))
        is_as_fast_as_known = job.training and held == shares.get(job.job_id) and _gains_no_more(curve, held)
        # workers resize without stopping, so no step is at risk
        switches = state_holders(state, job) is not None and not job.num_added_gpus
        if is_new and is_as_fast_as_known and switches and num_gpus - held <= num_idle:
            probe = ScalingProbe(job_id=job.job_id, num_gpus=num_gpus, until_s=now_s + _lasts_s(state, job, num_gpus))
            beside = _planned_beside(state, job, curve, probe, now_s, cache)
            if not beside.plan.late and beside.held == pool.held:
                return probe, beside
    return None


def _unknown_beyond(state: PoolState) -> Iterator[tuple[Job, MeasuredCurve]]:
    """Jobs that might be faster on more GPUs than were measured, by id."""
    curves = {key: curve for key, curve in state.curves.items() if 0 < curve.probed_to < math.inf}
    if not curves:
        return
    for job_id in sorted(state.live_jobs):
        job = state.live_jobs[job_id]
        curve = curves.get(spec_of(job).profile_key) if job.phase is Phase.ADMITTED else None
        if curve is not None and curve.iterations_per_s:
            yield job, curve


def _gains_no_more(curve: MeasuredCurve, held: int) -> bool:
    """Whether no known number of GPUs above those that a job has is worth while."""
    rates = curve.iterations_per_s
    above = max((rate for num_gpus, rate in rates.items() if num_gpus > held), default=0.0)
    return held in rates and above < WORTHWHILE_SPEEDUP * rates[held]


def _lasts_s(state: PoolState, job: Job, num_gpus: int) -> float:
    return resize_cost_of(state, spec_of(job)).seconds(num_gpus) + PROBE_S


def _planned_beside(
    state: PoolState,
    job: Job,
    curve: MeasuredCurve,
    probe: ScalingProbe,
    now_s: float,
    cache: PlanningCache | None,
) -> PlannedPool:
    """The pool as if the job made no progress until the probe is over and the job is back on its known GPUs.

    So its schedule after the probe holds all the work that is left now.
    """
    lost_s = probe.until_s - now_s + resize_cost_of(state, spec_of(job)).seconds(len(job.gpus))
    lost = math.ceil(lost_s * max(curve.iterations_per_s.values()))
    behind = fast_replace(job, iteration=job.iteration - lost)
    later = fast_replace(state, live_jobs=state.live_jobs.set(job.job_id, behind))
    return planned_pool(later, now_s, cache, loans=())  # a probe begins only beside no profiling run
