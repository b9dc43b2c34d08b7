"""Admission: the promises already made, and whether one more can be kept beside them.

A plan holds one schedule for each promised job; together they certify that every promise can be kept. How one job
is filled into free GPUs lives in `progressive_filling`; who gets the GPUs that stay free, in `allocation`.
Axis: J = promised jobs by earliest deadline, ties by id.
Source: ElasticFlow, Algorithm 1; in continuous time, with every resize charged.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from shared.scheduling.free_profile import FreeProfile, Schedule
from shared.scheduling.progressive_filling import (
    SchedulableJob,
    fastest_schedule,
    fill,
    finish_s,
    finish_under,
    minimum_satisfactory_share,
    overlaps,
    remainder,
)

_NOTHING_KEPT: Mapping[str, Schedule] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)  # not slotted: bounds and orders are computed once for a plan and kept
class AdmissionPlan:
    """A schedule for each promised job, jointly possible on `num_gpus` GPUs from `now_s` on.

    late: jobs whose promise can no longer be kept (their nodes are gone, say); they end as early as they can
    without making another late, and a job that needs more GPUs than are left has an empty schedule.
    """

    num_gpus: int
    now_s: float
    jobs_J: tuple[SchedulableJob, ...]
    schedules: Mapping[str, Schedule]
    free: FreeProfile
    late: tuple[str, ...]

    @staticmethod
    def build(
        jobs: Iterable[SchedulableJob],
        num_gpus: int,
        now_s: float,
        kept: Mapping[str, Schedule] = _NOTHING_KEPT,
    ) -> "AdmissionPlan":
        """Fill the promised jobs anew, earliest deadline first.

        kept: the schedules under which the jobs ran until now. Filling anew is greedy and can miss a way that was
        there a moment ago; then the schedules that still hold are kept, so no promise is lost by planning again.
        """
        jobs_J = tuple(sorted(jobs, key=_earliest_deadline_first))
        plan = _filled(jobs_J, num_gpus, now_s, {})
        if not plan.late or not kept:
            return plan
        unchanged = _filled(jobs_J, num_gpus, now_s, _holding(jobs_J, num_gpus, now_s, kept))
        return unchanged if len(unchanged.late) < len(plan.late) else plan

    def admit(self, job: SchedulableJob) -> "AdmissionPlan | None":
        """The plan with `job` promised too, or None; no other job becomes late by it."""
        assert job.job_id not in self.schedules, f"job {job.job_id} is already promised"
        around = minimum_satisfactory_share(job, self.free, self.now_s)
        if around is not None:
            return self._with(job, {job.job_id: around}, self.free.reserve(around))
        if not self._has_gpu_seconds(job):
            return None
        return self._making_room(job)

    def earliest_deadline_s(self, job: SchedulableJob) -> float | None:
        """The earliest deadline, in whole seconds, that `admit` accepts now; None if it accepts none.

        What is returned was accepted by `admit`. One second less is refused wherever acceptance is monotone in
        the deadline; greedy filling does not rule out exceptions, and then an even earlier one may exist.
        """
        around_s = self.earliest_deadline_around_s(job)
        alone = fastest_schedule(job, FreeProfile.constant(self.num_gpus, self.now_s), self.now_s)
        if around_s is None or alone is None:
            return None
        soonest_s = _whole_s(max(finish_s(alone), self.now_s))
        # The outcome changes only where the job moves past another in the order of deadlines,
        # and, between two such instants, where a smaller cap becomes enough.
        turns = {
            math.ceil(other.deadline_s) - 1.0 for other in self._movable_J if other.deadline_s < around_s
        }
        refused_s, accepted_s = self._first_accepted(
            job, sorted(at_s for at_s in turns if soonest_s <= at_s < around_s), soonest_s - 1.0, around_s
        )
        before = self._free_before(self._position(replace(job, deadline_s=accepted_s)))
        fills = [fill(job, before, cap, accepted_s) for cap in job.curve.levels]
        turns = {
            refused_s + 1.0,
            *(_whole_s(finish_s(schedule)) for schedule in fills if schedule is not None),
        }
        return self._first_accepted(
            job, sorted(at_s for at_s in turns if refused_s < at_s < accepted_s), refused_s, accepted_s
        )[1]

    def earliest_deadline_around_s(self, job: SchedulableJob) -> float | None:
        """The earliest deadline, in whole seconds, that moves no other job: cheap, and never too early."""
        schedule = fastest_schedule(job, self.free, self.now_s)
        return None if schedule is None else _whole_s(max(finish_s(schedule), self.now_s))

    def _first_accepted(
        self, job: SchedulableJob, deadlines_s: list[float], refused_s: float, accepted_s: float
    ) -> tuple[float, float]:
        """Bisect between a refused and an accepted deadline: the last refused, the first accepted."""
        low, high = 0, len(deadlines_s)
        while low < high:
            middle = (low + high) // 2
            if self.admit(replace(job, deadline_s=deadlines_s[middle])) is None:
                low, refused_s = middle + 1, deadlines_s[middle]
            else:
                high, accepted_s = middle, deadlines_s[middle]
        return refused_s, accepted_s

    def _making_room(self, job: SchedulableJob) -> "AdmissionPlan | None":
        """Fill `job` in before all later deadlines, and anew those in its way, the latest first to give way.

        Where one of them finds no room around the rest, all with deadlines later than its own are filled anew.
        """
        position = self._position(job)
        schedule = minimum_satisfactory_share(job, self._free_before(position), self.now_s)
        if schedule is None:
            return None
        changed = {job.job_id: schedule}
        free, waiting = self._giving_way(self.free.overdraw(schedule), self._movable_J[position:])
        all_later_wait = False
        while waiting:
            displaced = waiting.pop()
            schedule = minimum_satisfactory_share(displaced, free, self.now_s)
            if schedule is None and not all_later_wait:
                all_later_wait = True
                position = self._position(displaced)
                waiting = list(reversed(self._movable_J[position + 1 :]))
                moved = [self.schedules[job_id] for job_id in changed if job_id in self.schedules]
                free = self._free_before(position).release(*moved).reserve(*changed.values())
                schedule = minimum_satisfactory_share(displaced, free, self.now_s)
            if schedule is None:
                return None
            changed[displaced.job_id] = schedule
            free = free.reserve(schedule)
        return self._with(job, changed, free)

    def _giving_way(
        self, overdrawn: FreeProfile, later_J: tuple[SchedulableJob, ...]
    ) -> tuple[FreeProfile, list[SchedulableJob]]:
        """Take jobs off an overdrawn profile until it is sound: which they are, the latest deadline first."""
        free, displaced = overdrawn, list[SchedulableJob]()
        span = free.overdrawn()
        if span is None:
            return free, displaced
        for other in reversed(later_J):
            schedule = self.schedules[other.job_id]
            if overlaps(schedule, span) and free.lowest_within(schedule) < 0:
                free = free.release(schedule)
                displaced.append(other)
                if free.lowest >= 0:
                    break
        return free, displaced

    def _with(
        self, job: SchedulableJob, changed: Mapping[str, Schedule], free: FreeProfile
    ) -> "AdmissionPlan":
        jobs_J = tuple(sorted((*self.jobs_J, job), key=_earliest_deadline_first))
        plan = replace(self, jobs_J=jobs_J, schedules={**self.schedules, **changed}, free=free)
        plan._free_before_J[:] = self._free_before_J[
            : self._position(job) + 1
        ]  # earlier deadlines did not move
        return plan

    def _free_before(self, position: int) -> FreeProfile:
        """What is free if every job from `position` on yields; late jobs are past yielding."""
        known_J = self._free_before_J
        while len(known_J) <= position:
            known_J.append(known_J[-1].reserve(self.schedules[self._movable_J[len(known_J) - 1].job_id]))
        return known_J[position]

    def _position(self, job: SchedulableJob) -> int:
        return bisect_left(self._movable_keys_J, _earliest_deadline_first(job))

    def _has_gpu_seconds(self, job: SchedulableJob) -> bool:
        """Necessary for any admission: enough GPU-seconds up to each deadline, by lower bounds of all needs."""
        need = job.curve.least_gpu_seconds(job.remaining_iterations, job.on_time_s - self.now_s)
        before, spare_from_here_on = self._gpu_seconds_J[self._position(job)]
        return need <= spare_from_here_on and need <= self.num_gpus * (job.on_time_s - self.now_s) - before

    @cached_property
    def _free_before_J(self) -> list[FreeProfile]:
        late = [self.schedules[job_id] for job_id in self.late]
        return [FreeProfile.of(self.num_gpus, self.now_s, late)]

    @cached_property
    def _movable_J(self) -> tuple[SchedulableJob, ...]:
        late = set(self.late)
        return tuple(job for job in self.jobs_J if job.job_id not in late)

    @cached_property
    def _movable_keys_J(self) -> list[tuple[float, str]]:
        return [_earliest_deadline_first(job) for job in self._movable_J]

    @cached_property
    def _gpu_seconds_J(self) -> list[tuple[float, float]]:
        """At each position: the least that jobs before it need, and the least spare at deadlines from it on."""
        needed = [0.0]
        for job in self._movable_J:
            window_s = job.on_time_s - self.now_s
            needed.append(needed[-1] + job.curve.least_gpu_seconds(job.remaining_iterations, window_s))
        spare, spares = math.inf, [math.inf]
        for job, need in zip(reversed(self._movable_J), reversed(needed), strict=False):
            spare = min(spare, self.num_gpus * (job.on_time_s - self.now_s) - need)
            spares.append(spare)
        return list(zip(needed, reversed(spares), strict=True))


def _earliest_deadline_first(job: SchedulableJob) -> tuple[float, str]:
    return job.deadline_s, job.job_id


def _whole_s(at_s: float) -> float:
    return float(math.ceil(at_s))


def _filled(
    jobs_J: tuple[SchedulableJob, ...], num_gpus: int, now_s: float, settled: Mapping[str, Schedule]
) -> AdmissionPlan:
    """Fill all jobs that are not settled, earliest deadline first; those that no longer fit come last."""
    free = FreeProfile.of(num_gpus, now_s, list(settled.values()))
    schedules, late = dict(settled), list[SchedulableJob]()
    for job in jobs_J:
        if job.job_id not in settled:
            schedule = minimum_satisfactory_share(job, free, now_s)
            if schedule is None:
                late.append(job)
            else:
                schedules[job.job_id] = schedule
                free = free.reserve(schedule)
    for job in late:
        schedules[job.job_id] = fastest_schedule(job, free, now_s) or ()
        free = free.reserve(schedules[job.job_id])
    return AdmissionPlan(
        num_gpus=num_gpus,
        now_s=now_s,
        jobs_J=jobs_J,
        schedules=schedules,
        free=free,
        late=tuple(job.job_id for job in late),
    )


def _holding(
    jobs_J: tuple[SchedulableJob, ...], num_gpus: int, now_s: float, kept: Mapping[str, Schedule]
) -> dict[str, Schedule]:
    """The kept schedules that still end on time and still fit together."""
    free, holding = FreeProfile.constant(num_gpus, now_s), dict[str, Schedule]()
    for job in jobs_J:
        schedule = remainder(kept.get(job.job_id, ()), now_s)
        if schedule and finish_under(job, schedule, now_s) <= job.on_time_s and free.fits(schedule):
            holding[job.job_id] = schedule
            free = free.reserve(schedule)
    return holding
