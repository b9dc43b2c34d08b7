"""What admission and allocation promise, for any jobs; checked by a small simulator that shares no code with them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.allocation import allocate
from shared.scheduling.free_profile import FreeProfile, Schedule
from shared.scheduling.progressive_filling import (
    TIME_TOLERANCE_S,
    SchedulableJob,
    fastest_schedule,
    finish_s,
    minimum_satisfactory_share,
)
from tests.properties.strategies import job_lists, schedulable_jobs

NUM_GPUS = 16


def replayed_finish_s(job: SchedulableJob, schedule: Schedule, now_s: float) -> float:
    """When the job really ends under `schedule`: walk its instants, count iterations, charge each change of share."""
    done, share, ready_s, at_s = 0.0, job.current_num_gpus, job.stalled_until_s, now_s
    for start_s, end_s, num_gpus in schedule:
        assert now_s <= start_s < end_s
        assert num_gpus > 0
        assert start_s >= at_s
        if start_s > at_s:
            share = 0
        if num_gpus != share:
            share, ready_s = num_gpus, start_s + job.resize_cost_s
        rate = job.curve.throughput(num_gpus)
        working_s = max(start_s, ready_s)
        if rate and working_s + (job.remaining_iterations - done) / rate <= end_s + TIME_TOLERANCE_S:
            return working_s + (job.remaining_iterations - done) / rate
        done += rate * max(0.0, end_s - working_s)
        at_s = end_s
    return math.inf


def most_gpus_at_once(schedules: Iterable[Schedule]) -> int:
    schedules = list(schedules)
    instants = {segment.start_s for schedule in schedules for segment in schedule}
    return max(
        (
            sum(s.num_gpus for schedule in schedules for s in schedule if s.start_s <= at_s < s.end_s)
            for at_s in instants
        ),
        default=0,
    )


def assert_kept(plan: AdmissionPlan, schedules: Mapping[str, Schedule]) -> None:
    """The schedules are possible together, use levels of the jobs, and end every job on time that is not late."""
    assert most_gpus_at_once(schedules.values()) <= plan.num_gpus
    for job in plan.jobs_J:
        schedule = schedules[job.job_id]
        assert {segment.num_gpus for segment in schedule} <= set(job.curve.num_gpus_L)
        if job.job_id not in plan.late:
            replayed_s = replayed_finish_s(job, schedule, plan.now_s)
            assert replayed_s <= job.deadline_s + 2 * TIME_TOLERANCE_S
            assert abs(replayed_s - finish_s(schedule)) <= 2 * TIME_TOLERANCE_S


@given(schedulable_jobs(), job_lists(max_size=5))
def test_a_schedule_ends_when_it_says_and_by_the_deadline(
    job: SchedulableJob, others: list[SchedulableJob]
) -> None:
    free = AdmissionPlan.build(others, NUM_GPUS, 0.0).free
    fastest = fastest_schedule(job, free, 0.0)
    share = minimum_satisfactory_share(job, free, 0.0)
    if fastest is None:
        assert min(job.curve.levels) > NUM_GPUS
        assert share is None
        return
    assert abs(replayed_finish_s(job, fastest, 0.0) - finish_s(fastest)) <= 2 * TIME_TOLERANCE_S
    assert (share is not None) == (finish_s(fastest) <= job.deadline_s + TIME_TOLERANCE_S)
    if share is not None:
        assert replayed_finish_s(job, share, 0.0) <= job.deadline_s + 2 * TIME_TOLERANCE_S
        assert finish_s(share) >= finish_s(fastest)
        assert free.fits(share)


@given(job_lists())
def test_a_plan_never_promises_more_gpus_than_exist(jobs: list[SchedulableJob]) -> None:
    plan = AdmissionPlan.build(jobs, NUM_GPUS, 0.0)
    assert_kept(plan, plan.schedules)
    assert set(plan.schedules) == {job.job_id for job in jobs}
    assert AdmissionPlan.build(reversed(jobs), NUM_GPUS, 0.0).schedules == plan.schedules
    rebuilt = FreeProfile.of(NUM_GPUS, 0.0, plan.schedules.values())
    for segment in plan.free.segments(4000.0):
        assert rebuilt.after(segment.start_s).num_gpus_now == segment.num_gpus


@given(job_lists(), schedulable_jobs(job_id="new"))
def test_admission_makes_no_earlier_promise_late(jobs: list[SchedulableJob], new: SchedulableJob) -> None:
    plan = AdmissionPlan.build(jobs, NUM_GPUS, 0.0)
    admitted = plan.admit(new)
    if admitted is None:
        assert AdmissionPlan.build([new], NUM_GPUS, 0.0).late or jobs, "alone it would have fitted"
        return
    assert admitted.late == plan.late
    assert_kept(admitted, admitted.schedules)
    for job_id in plan.late:
        assert admitted.schedules[job_id] == plan.schedules[job_id]


@given(job_lists(fresh=True), schedulable_jobs(job_id="new", fresh=True))
def test_the_quoted_deadline_is_accepted_at_once(jobs: list[SchedulableJob], new: SchedulableJob) -> None:
    plan = AdmissionPlan.build([], NUM_GPUS, 0.0)
    for job in jobs:
        plan = plan.admit(job) or plan
    quoted_s, around_s = plan.earliest_deadline_s(new), plan.earliest_deadline_around_s(new)
    if quoted_s is None or around_s is None:
        assert min(new.curve.levels) > NUM_GPUS
        return
    assert quoted_s == int(quoted_s) <= around_s
    assert plan.admit(replace(new, deadline_s=quoted_s)) is not None
    assert plan.admit(replace(new, deadline_s=around_s)) is not None


@given(job_lists(), job_lists(max_size=6), st.sampled_from([0.0, 1.0, 60.0]))
def test_allocation_breaks_no_promise(
    promised: list[SchedulableJob], others: list[SchedulableJob], hysteresis_s: float
) -> None:
    others = [replace(job, job_id=f"free-{job.job_id}", deadline_s=math.inf) for job in others]
    plan = AdmissionPlan.build(promised, NUM_GPUS, 0.0)
    allocation = allocate(plan, promised, others, NUM_GPUS, 0.0, hysteresis_s)
    shares = allocation.num_gpus_by_job
    assert set(shares) == {job.job_id for job in (*promised, *others)}
    assert sum(shares.values()) <= NUM_GPUS
    assert all(shares[job.job_id] in (0, *job.curve.num_gpus_L) for job in (*promised, *others))
    assert allocation.valid_until_s > 0.0
    assert_kept(plan, allocation.schedules)
    for job in promised:
        held = [s.num_gpus for s in allocation.schedules[job.job_id] if s.start_s == 0.0]
        assert shares[job.job_id] == (held or [0])[0]
        assert finish_s(allocation.schedules[job.job_id]) <= finish_s(plan.schedules[job.job_id])
    assert allocate(plan, promised[::-1], others, NUM_GPUS, 0.0, hysteresis_s) == allocation


@settings(max_examples=50)
@given(job_lists(), job_lists(max_size=4), st.floats(0.0, 1.0))
def test_promises_hold_when_planned_again_under_way(
    promised: list[SchedulableJob], others: list[SchedulableJob], part: float
) -> None:
    others = [replace(job, job_id=f"free-{job.job_id}", deadline_s=math.inf) for job in others]
    plan = AdmissionPlan.build(promised, NUM_GPUS, 0.0)
    allocation = allocate(plan, promised, others, NUM_GPUS, 0.0)
    now_s = part * min(allocation.valid_until_s, 1000.0)
    under_way: list[SchedulableJob] = []
    for job in plan.jobs_J:
        share = allocation.num_gpus_by_job[job.job_id]
        moved = share not in (0, job.current_num_gpus)
        ready_s = job.resize_cost_s if moved else job.stalled_until_s if share else -math.inf
        rate = job.curve.throughput(share)
        left = job.remaining_iterations - rate * max(0.0, now_s - max(0.0, ready_s))
        if left > rate * TIME_TOLERANCE_S:
            under_way.append(
                replace(job, remaining_iterations=left, current_num_gpus=share, stalled_until_s=ready_s)
            )
    again = AdmissionPlan.build(under_way, NUM_GPUS, now_s, allocation.schedules)
    assert_kept(again, {job.job_id: again.schedules[job.job_id] for job in under_way})
    assume(not plan.late)
    assert not again.late


@given(schedulable_jobs(fresh=True))
def test_the_lower_bound_of_gpu_seconds_is_one(job: SchedulableJob) -> None:
    assume(math.isfinite(job.deadline_s))
    schedule = minimum_satisfactory_share(job, FreeProfile.constant(NUM_GPUS, 0.0), 0.0)
    assume(schedule is not None)
    held = sum((end_s - start_s) * num_gpus for start_s, end_s, num_gpus in schedule or ())
    bound = job.curve.least_gpu_seconds(job.remaining_iterations, job.deadline_s + TIME_TOLERANCE_S)
    assert held >= bound - 1e-6 * bound
