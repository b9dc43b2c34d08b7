"""Algorithm 1: one job filled into free GPUs, and many jobs promised together."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from elasticflow.shared.messages.gpus import ShareSegment
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_search import AdmissionSearch, earliest_deadline_around_s
from elasticflow.shared.scheduling.availability.availability_profile import (
    MAX_SEGMENTS,
    AvailabilityProfile,
    ScratchMemory,
    Segments,
    empty_availability_profile,
)
from elasticflow.shared.scheduling.availability.fill import SLACK_S, Limits, fill, minimum_share
from elasticflow.shared.scheduling.availability.plan_repair import drop_past, trim_to_remaining_work
from elasticflow.shared.scheduling.jobs.job_table import (
    JobTable,
    SchedulableJob,
    Schedule,
    end_s,
    gpu_seconds,
)
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from tests.support.admission_plans import admit, fits_around, utilization
from tests.support.exact_replay import exact_end_s

FIGURE_4 = ScalingCurve((1, 2, 4), (1.0, 1.5, 2.0))
LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 4.0))
Pieces = tuple[tuple[float, int], ...]


def job(iterations: float, deadline_s: float = math.inf, cost_s: float = 0.0, **more: object) -> SchedulableJob:
    fields = {"job_id": "job", "curve": LINEAR, "resize_cost": ResizeCost.flat(cost_s), **more}
    return SchedulableJob(remaining_iterations=iterations, deadline_s=deadline_s, **fields)  # type: ignore[arg-type]


def profile_of(pieces: Pieces) -> AvailabilityProfile:
    profile = empty_availability_profile(8 * MAX_SEGMENTS)
    for number, (start_s, num_gpus) in enumerate(pieces):
        profile.start_B[number], profile.free_B[number] = start_s, num_gpus
    profile.size[0] = len(pieces)
    return profile


def share(job: SchedulableJob, *pieces: tuple[float, int]) -> Schedule | None:
    """The minimum satisfactory share."""
    jobs, work = JobTable.of([job]).jobs, ScratchMemory().arrays(1024)
    return _schedule(work.found, minimum_share(profile_of(pieces), jobs, 0, job.deadline_s, work))


def fastest(job: SchedulableJob, *pieces: tuple[float, int]) -> Schedule | None:
    """The schedule that ends first."""
    jobs, work = JobTable.of([job]).jobs, ScratchMemory().arrays(1024)
    cap = len(job.curve.levels) - 1
    count = fill(profile_of(pieces), jobs, 0, Limits(cap, math.inf), work.found, work.memory)
    return _schedule(work.found, count)


def _schedule(out: Segments, count: int) -> Schedule | None:
    starts_s, ends_s, num_gpus = out
    if count < 0:
        return None
    return tuple(ShareSegment(float(starts_s[k]), float(ends_s[k]), int(num_gpus[k])) for k in range(count))


def assert_steps(schedule: Schedule | None, *steps: tuple[float, float, int]) -> None:
    """The schedule is this, and has slack for rounding: at most a slack at its end."""
    assert schedule is not None
    assert [segment.num_gpus for segment in schedule] == [num_gpus for _, _, num_gpus in steps]
    for segment, (start_s, until_s, _) in zip(schedule[:-1], steps[:-1], strict=True):
        assert (segment.start_s, segment.end_s) == (start_s, until_s)
    start_s, until_s, num_gpus = steps[-1]
    assert schedule[-1].start_s == start_s
    assert until_s < schedule[-1].end_s <= until_s + 4.001 * SLACK_S / num_gpus * LINEAR.max_useful_gpus


# --- one job --------------------------------------------------------------------------------------------


def test_the_example_of_figure_4() -> None:
    alone = share(job(3.0, 2.01, curve=FIGURE_4), (0.0, 4))
    assert_steps(alone, (0.0, 2.0, 2))
    assert gpu_seconds(alone or ()) == pytest.approx(4.0, abs=0.01)
    beside_a_and_b = share(job(3.0, 2.01, curve=FIGURE_4), (0.0, 1), (1.0, 4))
    assert_steps(beside_a_and_b, (0.0, 1.0, 1), (1.0, 2.0, 4))
    assert gpu_seconds(beside_a_and_b or ()) == pytest.approx(5.0, abs=0.01)


def test_the_smallest_cap_that_is_enough_is_taken() -> None:
    assert_steps(share(job(8.0, 8.01), (0.0, 4)), (0.0, 8.0, 1))
    assert_steps(share(job(8.0, 7.9), (0.0, 4)), (0.0, 4.0, 2))
    assert share(job(8.0, 1.9), (0.0, 4)) is None
    assert_steps(fastest(job(8.0, 1.9), (0.0, 4)), (0.0, 2.0, 4))


def test_a_deadline_that_leaves_no_room_for_rounding_is_not_promised() -> None:
    assert share(job(8.0, 2.0), (0.0, 4)) is None
    assert_steps(share(job(8.0, 2.0 + 2 * SLACK_S), (0.0, 4)), (0.0, 2.0, 4))


def test_a_schedule_is_long_enough_in_exact_arithmetic() -> None:
    tenth = job(1.0, curve=ScalingCurve((1,), (0.1,)))  # 0.1 is a little more than a tenth
    schedule = fastest(tenth, (0.0, 1))
    assert schedule is not None
    assert exact_end_s(tenth, schedule, 0.0) == 1 / Fraction(0.1)


def test_the_resize_cost_is_charged_at_the_start_and_at_each_change() -> None:
    growing = job(16.0, 15.0, cost_s=2.0)
    assert_steps(share(growing, (0.0, 1), (10.0, 4)), (0.0, 10.0, 1), (10.0, 14.0, 4))  # 8 + (4 - 2) * 4
    assert share(replace(growing, deadline_s=13.9), (0.0, 1), (10.0, 4)) is None


def test_a_larger_share_may_cost_more_to_change_to() -> None:
    by_size = ResizeCost((1, 4), (1.0, 5.0))
    assert_steps(fastest(job(8.0, resize_cost=by_size), (0.0, 4)), (0.0, 5.0, 2))  # 1 + 4 s, on four 5 + 2 s


def test_a_running_job_goes_on_without_cost_and_a_stalled_one_waits() -> None:
    running = job(8.0, 4.01, current_num_gpus=2, cost_s=3.0)
    assert_steps(share(running, (0.0, 4)), (0.0, 4.0, 2))
    stalled = replace(running, stalled_until_s=1.0)
    assert share(stalled, (0.0, 4)) is None
    assert end_s(fastest(stalled, (0.0, 4)) or ()) == pytest.approx(5.0, abs=0.01)


def test_a_stretch_too_short_to_make_progress_is_not_held() -> None:
    assert_steps(fastest(job(4.0, cost_s=2.0), (0.0, 4), (2.0, 0), (5.0, 4)), (5.0, 8.0, 4))


def test_a_short_chance_to_grow_is_let_pass() -> None:
    running = job(20.0, current_num_gpus=2, cost_s=1.0)
    # 2 s with 4 GPUs bring no more than with 2, less the second
    assert_steps(fastest(running, (0.0, 2), (4.0, 4), (6.0, 2)), (0.0, 10.0, 2))


def test_a_small_share_is_let_pass_where_waiting_for_a_larger_one_costs_nothing() -> None:
    # a second on one GPU, less the stop, brings nothing; then four
    assert_steps(fastest(job(8.0, cost_s=1.0), (0.0, 1), (1.0, 4)), (1.0, 4.0, 4))


def test_a_job_stays_where_it_is_when_shrinking_would_cost_more() -> None:
    nearly_done = job(4.0, 100.0, current_num_gpus=4, cost_s=10.0)
    assert_steps(share(nearly_done, (0.0, 4)), (0.0, 1.0, 4))


def test_levels_that_do_not_pay_are_never_held() -> None:
    curve = ScalingCurve((1, 2, 4), (2.0, 1.0, 3.0))
    assert_steps(fastest(job(30.0, curve=curve), (0.0, 2), (3.0, 4)), (0.0, 3.0, 1), (3.0, 11.0, 4))


def test_a_finished_job_needs_nothing() -> None:
    assert share(job(0.0, -5.0), (0.0, 1)) == ()
    assert end_s(()) == -math.inf


def test_where_no_gpu_is_ever_free_no_deadline_is_late_enough() -> None:
    assert fastest(job(1.0), (0.0, 0)) is None
    assert fastest(job(1.0), (0.0, 4), (0.1, 0)) is None
    assert share(job(1.0), (0.0, 0)) is None


# --- a schedule that was kept ------------------------------------------------------------------------------


def held_until(job: SchedulableJob, schedule: Schedule, now_s: float = 0.0) -> tuple[float, Schedule]:
    """When it ends under this schedule, and what it then holds."""
    table = JobTable.of([job])
    table.write_schedule(0, [number for segment in schedule for number in segment])
    return trim_to_remaining_work(table.schedules, table.jobs, 0, True, now_s), table.schedule(0)


def test_when_a_job_ends_under_a_given_schedule() -> None:
    schedule: Schedule = (ShareSegment(0.0, 4.0, 2), ShareSegment(6.0, 9.0, 2))
    assert held_until(job(9.9, cost_s=1.0), schedule) == (9.0, schedule)
    assert held_until(job(10.1, cost_s=1.0), schedule) == (pytest.approx(9.05, abs=0.01), schedule), "too late"
    assert held_until(job(11.9, cost_s=1.0, current_num_gpus=2), schedule) == (9.0, schedule)
    assert held_until(job(1.0, cost_s=1.0, current_num_gpus=2), schedule[1:])[0] < 7.51  # it stopped between
    assert held_until(job(0.0), schedule) == (0.0, ())
    assert held_until(job(1.0, curve=ScalingCurve((1,), (1.0,))), schedule)[0] == math.inf  # no such level


def test_who_ends_a_second_or_more_early_gives_back_the_rest() -> None:
    schedule: Schedule = (ShareSegment(0.0, 4.0, 2), ShareSegment(6.0, 9.0, 2))
    ends_s, left = held_until(job(6.0), schedule)
    assert ends_s == pytest.approx(3.0, abs=0.01)
    assert left == (ShareSegment(0.0, ends_s, 2),)
    assert held_until(job(12.5), schedule) == (9.0, schedule)


def test_what_is_past_is_cut_off() -> None:
    table = JobTable.of([job(1.0)])
    for now_s, left in (
        (3.0, (ShareSegment(3.0, 4.0, 2), ShareSegment(6.0, 9.0, 2))),
        (4.0, (ShareSegment(6.0, 9.0, 2),)),
        (9.0, ()),
    ):
        table.write_schedule(0, [0.0, 4.0, 2, 6.0, 9.0, 2])
        drop_past(table.schedules, np.array([0]), now_s)
        assert table.schedule(0) == left


# --- many jobs ----------------------------------------------------------------------------------------


def named(job_id: str, iterations: float, deadline_s: float, **more: object) -> SchedulableJob:
    return job(iterations, deadline_s, job_id=job_id, **more)  # type: ignore[arg-type]


def test_a_plan_fills_the_earliest_deadline_first() -> None:
    plan = AdmissionPlan.build([named("b", 8.0, 4.1), named("a", 8.0, 2.01)], 4, 0.0)
    assert_steps(plan.schedules["a"], (0.0, 2.0, 4))
    assert_steps(plan.schedules["b"], (end_s(plan.schedules["a"]), 4.0, 4))
    assert plan.late_jobs == ()


def test_an_urgent_job_is_admitted_by_moving_later_deadlines() -> None:
    plan = AdmissionPlan.build([named("patient", 16.0, 16.1), named("also", 32.0, 16.1)], 4, 0.0)
    urgent = named("urgent", 8.0, 2.1)
    assert not fits_around(plan, urgent)
    proposal = AdmissionSearch(plan).propose(urgent)
    assert proposal is not None
    assert plan.schedules.keys() == {"patient", "also"}, "a proposal changes nothing"
    plan.accept(proposal)
    assert_steps(plan.schedules["urgent"], (0.0, 2.0, 4))
    assert plan.late_jobs == ()
    assert end_s(plan.schedules["patient"]) <= 16.1
    assert end_s(plan.schedules["also"]) <= 16.1
    assert [plan.table.job_ids[row] for row in plan.promised] == ["urgent", "also", "patient"]


def test_a_job_that_would_make_another_late_is_refused() -> None:
    plan = AdmissionPlan.build([named("full", 40.0, 10.01)], 4, 0.0)
    assert not admit(plan, named("urgent", 1.0, 1.1))
    assert admit(plan, named("next", 1.0, 11.1))


def test_the_earliest_deadline_is_where_acceptance_begins() -> None:
    plan = AdmissionPlan.build([named("patient", 16.0, 17.0), named("also", 32.0, 17.0)], 4, 0.0)
    urgent = named("urgent", 7.8, math.inf)
    assert AdmissionSearch(plan).earliest_deadline_s(urgent) == 2.0
    assert AdmissionSearch(plan).propose(replace(urgent, deadline_s=1.0)) is None
    around_s = earliest_deadline_around_s(plan, urgent)
    assert around_s is not None
    assert around_s > 2.0
    full = AdmissionPlan.build([named("full", 39.9, 10.0)], 4, 0.0)
    assert AdmissionSearch(full).earliest_deadline_s(urgent) == earliest_deadline_around_s(full, urgent) == 12.0


def test_who_ends_just_before_a_step_down_gives_back_the_rest_and_takes_nothing_for_it() -> None:
    early = named("early", 39.995, 30.0, current_num_gpus=4)
    kept: dict[str, Schedule] = {
        "early": (ShareSegment(0.0, 10.0, 4), ShareSegment(10.0, 14.0, 1)),
        "next": (ShareSegment(10.0, 20.0, 2), ShareSegment(20.0, 21.0, 1)),
    }
    plan = AdmissionPlan.build([early, named("next", 20.5, 30.0)], 4, 0.0, kept)
    assert plan.late_jobs == ()
    assert plan.schedules == {"early": (ShareSegment(0.0, 10.0, 4),), "next": kept["next"]}


def test_no_deadline_helps_a_job_that_needs_more_gpus_than_exist() -> None:
    plan = AdmissionPlan.build([], 4, 0.0)
    large = named("large", 8.0, math.inf, curve=ScalingCurve((8,), (1.0,)))
    assert AdmissionSearch(plan).earliest_deadline_s(large) is None
    assert earliest_deadline_around_s(plan, large) is None
    assert not admit(plan, large)


def test_a_promise_that_cannot_be_kept_is_named_late_and_gets_the_best_that_is_left() -> None:
    jobs = [named("lost", 40.0, 10.0), named("kept", 10.0, 15.0), named("never", 1.0, 20.0)]
    jobs[2] = replace(jobs[2], curve=ScalingCurve((4,), (1.0,)))
    plan = AdmissionPlan.build(jobs, 2, 0.0)  # two of four GPUs are gone
    assert plan.late_jobs == ("lost", "never")
    assert end_s(plan.schedules["kept"]) <= 15.0
    assert 10.0 < end_s(plan.schedules["lost"]) < math.inf
    assert plan.schedules["never"] == ()


def test_a_late_job_goes_before_those_who_can_wait_and_only_before_them() -> None:
    late = named("late", 20.0, 4.9)
    kept: dict[str, Schedule] = {"late": (ShareSegment(0.0, 10.0, 2),), "other": (ShareSegment(0.0, 4.1, 2),)}
    patient = AdmissionPlan.build([late, named("other", 8.0, 100.0)], 4, 0.0, kept)
    assert patient.late_jobs == ("late",)
    assert_steps(patient.schedules["late"], (0.0, 5.0, 4))
    assert 5.0 < end_s(patient.schedules["other"]) <= 100.0
    assert [patient.table.job_ids[row] for row in patient.changed_rows()] == ["other", "late"]
    urgent = AdmissionPlan.build([late, named("other", 8.0, 4.2)], 4, 0.0, kept)
    assert urgent.late_jobs == ("late",)
    assert urgent.schedules["other"] == kept["other"]


def test_nobody_is_moved_for_less_than_a_second_of_lateness() -> None:
    late = named("late", 20.0, 4.9)
    kept: dict[str, Schedule] = {"late": (ShareSegment(0.0, 10.0, 2),), "other": (ShareSegment(0.0, 0.9, 2),)}
    plan = AdmissionPlan.build([late, named("other", 1.7, 100.0)], 4, 0.0, kept)
    assert plan.late_jobs == ("late",)
    assert plan.schedules["other"] == kept["other"]


def test_schedules_that_still_hold_are_kept_where_filling_anew_would_lose_a_promise() -> None:
    needs_four = ScalingCurve((4,), (4.0,))
    steady = named("steady", 8.0, 8.1)
    other = named("other", 16.0, 9.0, curve=needs_four)
    kept: dict[str, Schedule] = {
        "steady": (ShareSegment(-1.0, 2.1, 4),),
        "other": (ShareSegment(2.1, 6.2, 4),),
    }
    plan = AdmissionPlan.build([steady, other], 4, 0.0, kept)
    assert plan.late_jobs == ()
    assert plan.schedules == {"steady": (ShareSegment(0.0, 2.1, 4),), "other": kept["other"]}
    assert plan.changed_rows() == []
    fewer = AdmissionPlan.build([steady, other], 3, 0.0, kept)
    assert fewer.late_jobs == ("other",)
    assert [fewer.table.job_ids[row] for row in fewer.changed_rows()] == ["steady", "other"]


def test_who_is_a_little_behind_holds_its_share_for_a_little_longer() -> None:
    behind = named("behind", 8.5, 20.0, current_num_gpus=4)
    kept: dict[str, Schedule] = {"behind": (ShareSegment(-1.0, 2.0, 4),)}
    plan = AdmissionPlan.build([behind], 4, 0.0, kept)
    assert_steps(plan.schedules["behind"], (0.0, 2.126, 4))
    assert plan.changed_rows() == [0]


def test_who_is_behind_is_filled_anew_where_others_hold_its_gpus_next_or_where_it_would_be_late() -> None:
    behind = named("behind", 8.5, 20.0, current_num_gpus=4)
    other = named("other", 16.0, 9.0, curve=ScalingCurve((4,), (4.0,)))
    kept: dict[str, Schedule] = {
        "behind": (ShareSegment(-1.0, 2.0, 4),),
        "other": (ShareSegment(2.0, 6.1, 4),),
    }
    plan = AdmissionPlan.build([behind, other], 4, 0.0, kept)
    assert plan.schedules["other"] == kept["other"]
    assert end_s(plan.schedules["behind"]) > 6.1
    assert plan.late_jobs == ()
    slow: dict[str, Schedule] = {"hurried": (ShareSegment(-1.0, 8.0, 1),)}
    hurried = named("hurried", 8.5, 8.2, current_num_gpus=1)
    assert AdmissionPlan.build([hurried], 4, 0.0, slow).schedules["hurried"][0].num_gpus > 1


def test_where_filling_by_deadline_fails_another_order_is_tried() -> None:
    steady = named("steady", 8.0, 8.1)  # filled first it takes one GPU for 8 s, and the other never gets four
    other = named("other", 16.0, 9.0, curve=ScalingCurve((4,), (4.0,)))
    plan = AdmissionPlan.build([steady, other], 4, 0.0)
    assert plan.late_jobs == ()
    assert [plan.table.job_ids[row] for row in plan.promised] == ["steady", "other"]


def test_a_plan_has_room_for_any_number_of_promises() -> None:
    plan = AdmissionPlan.build([], 4, 0.0)
    for number in range(300):
        assert admit(plan, named(f"job-{number:03d}", 4.0, 1.1 * (number + 1) + 1.0, cost_s=0.01))
    assert len(plan.schedules) == 300
    assert utilization(plan, 300.0) == pytest.approx(1.0, abs=0.1)
