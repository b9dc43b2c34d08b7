"""Algorithm 1: one job filled into free GPUs, and many jobs promised together."""

import math
from dataclasses import replace

import pytest

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.free_profile import FreeProfile, Schedule, Segment
from shared.scheduling.progressive_filling import (
    SchedulableJob,
    fastest_schedule,
    finish_s,
    finish_under,
    gpu_seconds,
    minimum_satisfactory_share,
    remainder,
)
from shared.scheduling.scaling_curve import ScalingCurve

FIGURE_4 = ScalingCurve((1, 2, 4), (1.0, 1.5, 2.0))
LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 4.0))


def job(iterations: float, deadline_s: float = math.inf, **more: object) -> SchedulableJob:
    fields = {"job_id": "job", "curve": LINEAR, **more}
    return SchedulableJob(remaining_iterations=iterations, deadline_s=deadline_s, **fields)  # type: ignore[arg-type]


def free_pieces(*pieces: tuple[float, int]) -> FreeProfile:
    return FreeProfile([start_s for start_s, _ in pieces], [num_gpus for _, num_gpus in pieces])


def test_the_example_of_figure_4() -> None:
    alone = minimum_satisfactory_share(job(3.0, 2.0, curve=FIGURE_4), FreeProfile.constant(4, 0.0), 0.0)
    assert alone == (Segment(0.0, 2.0, 2),)
    assert gpu_seconds(alone) == 4.0
    beside_a_and_b = FreeProfile.constant(4, 0.0).reserve((Segment(0.0, 1.0, 3),))
    share = minimum_satisfactory_share(job(3.0, 2.0, curve=FIGURE_4), beside_a_and_b, 0.0)
    assert share == (Segment(0.0, 1.0, 1), Segment(1.0, 2.0, 4))
    assert gpu_seconds(share) == 5.0


def test_the_smallest_cap_that_is_enough_is_taken() -> None:
    free = FreeProfile.constant(4, 0.0)
    assert minimum_satisfactory_share(job(8.0, 8.0), free, 0.0) == (Segment(0.0, 8.0, 1),)
    assert minimum_satisfactory_share(job(8.0, 7.9), free, 0.0) == (Segment(0.0, 4.0, 2),)
    assert minimum_satisfactory_share(job(8.0, 1.9), free, 0.0) is None
    assert fastest_schedule(job(8.0, 1.9), free, 0.0) == (Segment(0.0, 2.0, 4),)


def test_the_resize_cost_is_charged_at_the_start_and_at_each_change() -> None:
    free = free_pieces((0.0, 1), (10.0, 4))
    schedule = minimum_satisfactory_share(job(16.0, 15.0, resize_cost_s=2.0), free, 0.0)
    assert schedule == (Segment(0.0, 10.0, 1), Segment(10.0, 14.0, 4))  # 8 + (4 - 2) * 4 iterations
    assert minimum_satisfactory_share(job(16.0, 13.9, resize_cost_s=2.0), free, 0.0) is None


def test_a_running_job_goes_on_without_cost_and_a_stalled_one_waits() -> None:
    free = FreeProfile.constant(4, 0.0)
    running = job(8.0, 4.0, current_num_gpus=2, resize_cost_s=3.0)
    assert minimum_satisfactory_share(running, free, 0.0) == (Segment(0.0, 4.0, 2),)
    stalled = replace(running, stalled_until_s=1.0)
    assert minimum_satisfactory_share(stalled, free, 0.0) is None
    assert fastest_schedule(stalled, free, 0.0) == (Segment(0.0, 5.0, 2),)  # tied with 3 + 2 s on 4 GPUs


def test_a_stretch_too_short_to_make_progress_is_not_held() -> None:
    free = free_pieces((0.0, 4), (2.0, 0), (5.0, 4))
    schedule = fastest_schedule(job(4.0, resize_cost_s=2.0), free, 0.0)
    assert schedule == (Segment(5.0, 8.0, 4),)


def test_a_short_chance_to_grow_is_let_pass() -> None:
    free = free_pieces((0.0, 2), (4.0, 4), (6.0, 2))
    schedule = fastest_schedule(job(20.0, current_num_gpus=2, resize_cost_s=1.0), free, 0.0)
    assert schedule == (Segment(0.0, 10.0, 2),)  # 2 s with 4 GPUs bring no more than with 2, less the second


def test_a_job_stays_where_it_is_when_shrinking_would_cost_more() -> None:
    nearly_done = job(4.0, 100.0, current_num_gpus=4, resize_cost_s=10.0)
    schedule = minimum_satisfactory_share(nearly_done, FreeProfile.constant(4, 0.0), 0.0)
    assert schedule == (Segment(0.0, 1.0, 4),)


def test_levels_that_do_not_pay_are_never_held() -> None:
    curve = ScalingCurve((1, 2, 4), (2.0, 1.0, 3.0))
    schedule = fastest_schedule(job(30.0, curve=curve), free_pieces((0.0, 2), (3.0, 4)), 0.0)
    assert schedule == (Segment(0.0, 3.0, 1), Segment(3.0, 11.0, 4))


def test_a_finished_job_needs_nothing() -> None:
    assert minimum_satisfactory_share(job(0.0, -5.0), FreeProfile.constant(1, 0.0), 0.0) == ()
    assert finish_s(()) == -math.inf


def test_when_a_job_ends_under_a_given_schedule() -> None:
    schedule: Schedule = (Segment(0.0, 4.0, 2), Segment(6.0, 9.0, 2))
    assert finish_under(job(10.0, resize_cost_s=1.0), schedule, 0.0) == 9.0
    assert finish_under(job(10.0, resize_cost_s=1.0, current_num_gpus=2), schedule, 0.0) == 8.0
    assert finish_under(job(10.0, resize_cost_s=2.0), schedule, 0.0) == math.inf
    assert finish_under(job(1.0, current_num_gpus=2, resize_cost_s=1.0), schedule[1:], 0.0) == 7.5
    assert remainder(schedule, 3.0) == (Segment(3.0, 4.0, 2), Segment(6.0, 9.0, 2))
    assert remainder(schedule, 4.0) == schedule[1:]


def named(job_id: str, iterations: float, deadline_s: float, **more: object) -> SchedulableJob:
    return job(iterations, deadline_s, job_id=job_id, **more)


def test_a_plan_fills_the_earliest_deadline_first() -> None:
    plan = AdmissionPlan.build([named("b", 8.0, 4.0), named("a", 8.0, 2.0)], 4, 0.0)
    assert plan.schedules == {"a": (Segment(0.0, 2.0, 4),), "b": (Segment(2.0, 4.0, 4),)}
    assert plan.late == ()


def test_an_urgent_job_is_admitted_by_moving_later_deadlines() -> None:
    plan = AdmissionPlan.build([named("patient", 16.0, 16.0), named("also", 32.0, 16.0)], 4, 0.0)
    assert plan.free.num_gpus_now == 1
    admitted = plan.admit(named("urgent", 8.0, 2.0))
    assert admitted is not None
    assert admitted.schedules["urgent"] == (Segment(0.0, 2.0, 4),)
    assert admitted.late == ()
    assert finish_s(admitted.schedules["patient"]) <= 16.0
    assert finish_s(admitted.schedules["also"]) <= 16.0
    assert plan.schedules.keys() == {"patient", "also"}, "a plan is a value"


def test_a_job_that_would_make_another_late_is_refused() -> None:
    plan = AdmissionPlan.build([named("full", 40.0, 10.0)], 4, 0.0)
    assert plan.admit(named("urgent", 1.0, 1.0)) is None
    assert plan.admit(named("next", 1.0, 11.0)) is not None


def test_the_earliest_deadline_is_where_acceptance_begins() -> None:
    plan = AdmissionPlan.build([named("patient", 16.0, 16.0), named("also", 32.0, 16.0)], 4, 0.0)
    urgent = named("urgent", 8.0, math.inf)
    assert plan.earliest_deadline_s(urgent) == 2.0
    assert plan.admit(replace(urgent, deadline_s=1.0)) is None
    around_s = plan.earliest_deadline_around_s(urgent)
    assert around_s is not None
    assert around_s > 2.0
    full = AdmissionPlan.build([named("full", 40.0, 10.0)], 4, 0.0)
    assert full.earliest_deadline_s(urgent) == full.earliest_deadline_around_s(urgent) == 12.0


def test_no_deadline_helps_a_job_that_needs_more_gpus_than_exist() -> None:
    plan = AdmissionPlan.build([], 4, 0.0)
    large = named("large", 8.0, math.inf, curve=ScalingCurve((8,), (1.0,)))
    assert plan.earliest_deadline_s(large) is None
    assert plan.earliest_deadline_around_s(large) is None
    assert plan.admit(large) is None


def test_a_promise_that_cannot_be_kept_is_named_late_and_gets_the_best_that_is_left() -> None:
    jobs = [named("lost", 40.0, 10.0), named("kept", 10.0, 15.0), named("never", 1.0, 20.0)]
    jobs[2] = replace(jobs[2], curve=ScalingCurve((4,), (1.0,)))
    plan = AdmissionPlan.build(jobs, 2, 0.0)  # two of four GPUs are gone
    assert plan.late == ("lost", "never")
    assert finish_s(plan.schedules["kept"]) <= 15.0
    assert 10.0 < finish_s(plan.schedules["lost"]) < math.inf
    assert plan.schedules["never"] == ()
    assert plan.admit(named("new", 1.0, 11.0)) is None or plan.late


def test_the_same_job_is_not_promised_twice() -> None:
    plan = AdmissionPlan.build([named("a", 8.0, 2.0)], 4, 0.0)
    with pytest.raises(AssertionError, match="already promised"):
        plan.admit(named("a", 8.0, 20.0))


def test_schedules_that_still_hold_are_kept_where_filling_anew_would_lose_a_promise() -> None:
    needs_four = ScalingCurve((4,), (4.0,))
    steady = named("steady", 8.0, 8.0)  # filled anew it takes one GPU for 8 s, and the other never gets four
    other = named("other", 16.0, 9.0, curve=needs_four)
    anew = AdmissionPlan.build([steady, other], 4, 0.0)
    assert anew.late == ("other",)
    kept: dict[str, Schedule] = {"steady": (Segment(-1.0, 2.0, 4),), "other": (Segment(2.0, 6.0, 4),)}
    plan = AdmissionPlan.build([steady, other], 4, 0.0, kept)
    assert plan.late == ()
    assert plan.schedules == {"steady": (Segment(0.0, 2.0, 4),), "other": (Segment(2.0, 6.0, 4),)}
    fewer = AdmissionPlan.build([steady, other], 3, 0.0, kept)
    assert fewer.late == ("other",)
