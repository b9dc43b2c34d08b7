"""Algorithm 2: promises first, one level for each waiting job, then by marginal return."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from elasticflow.shared.messages.gpus import ShareSegment
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.allocation.allocation import (
    IMMINENT_S,
    Allocation,
    RowsWithoutPromise,
    allocate,
    bring_changes_forward,
)
from elasticflow.shared.scheduling.availability.availability_profile import empty_availability_profile, sweep
from elasticflow.shared.scheduling.jobs.job_table import JobTable, SchedulableJob, Schedule, end_s
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.state.nodes import PromisableGpus

LINEAR = ScalingCurve((1, 2, 4, 8), (1.0, 2.0, 4.0, 8.0))
CONCAVE = ScalingCurve((1, 2, 4, 8), (1.0, 1.5, 2.0, 2.2))


def job(
    job_id: str,
    curve: ScalingCurve = LINEAR,
    iterations: float = 80.0,
    deadline_s: float = math.inf,
    share: int = 0,
    cost_s: float = 0.0,
) -> SchedulableJob:
    return SchedulableJob(
        job_id=job_id,
        curve=curve,
        remaining_iterations=iterations,
        deadline_s=deadline_s,
        current_num_gpus=share,
        resize_cost=ResizeCost.flat(cost_s),
    )


def planned(
    promised: Sequence[SchedulableJob], others: Sequence[SchedulableJob] = (), num_gpus: int = 8
) -> tuple[AdmissionPlan, list[int]]:
    """A plan, and the rows without a promise."""
    table = JobTable.of([*promised, *others])
    plan = AdmissionPlan(table, range(len(promised)), PromisableGpus(num_gpus), 0.0)
    return plan, list(range(len(promised), table.num_jobs))


def allocated(
    promised: Sequence[SchedulableJob], others: Sequence[SchedulableJob] = (), num_gpus: int = 8
) -> tuple[Mapping[str, int], Allocation, dict[str, Schedule]]:
    plan, rows = planned(promised, others, num_gpus)
    allocation = allocate(plan, RowsWithoutPromise(rows))
    return allocation.num_gpus_by_job, allocation, plan.schedules


def test_a_job_alone_gets_all_that_makes_it_faster() -> None:
    shares, allocation, schedules = allocated([job("a", deadline_s=1000.0)])
    assert shares == {"a": 8}
    assert len(schedules["a"]) == 1
    assert allocation.valid_until_s == end_s(schedules["a"]) == pytest.approx(10.0, abs=0.01)


def test_what_is_left_goes_where_it_costs_the_fewest_gpu_seconds() -> None:
    both = [job("concave", CONCAVE, deadline_s=1000.0), job("linear", deadline_s=1000.0)]
    assert allocated(both)[0] == {"linear": 4, "concave": 4}
    assert allocated(both, num_gpus=4)[0] == {"linear": 2, "concave": 2}
    assert allocated(both, num_gpus=3)[0] == {"linear": 2, "concave": 1}


def test_everyone_waiting_gets_its_smallest_level_before_anyone_gets_more() -> None:
    waiting = [job(f"free-{n}") for n in range(3)]
    promised = [job("promised", deadline_s=40.1)]
    assert allocated(promised, waiting, num_gpus=5)[0] == {
        "promised": 2,
        "free-0": 1,
        "free-1": 1,
        "free-2": 1,
    }
    assert allocated(promised, waiting, num_gpus=4)[0] == {
        "promised": 2,
        "free-0": 1,
        "free-1": 1,
        "free-2": 0,
    }


def test_a_job_without_a_promise_gives_way_when_a_promise_needs_its_gpus() -> None:
    promised = [job("a", iterations=8.0, deadline_s=2.1), job("b", iterations=64.0, deadline_s=10.1)]
    shares, allocation, schedules = allocated(promised, [job("free")])
    assert shares == {"a": 4, "b": 4, "free": 0}
    assert allocation.valid_until_s == end_s(schedules["a"])


def test_a_job_keeps_its_share_where_a_change_brings_nothing() -> None:
    # 40 s as it is; 50 s of resize for 10 s of work
    assert allocated([job("a", deadline_s=1000.0, share=2, cost_s=50.0)])[0] == {"a": 2}
    assert allocated([job("a", deadline_s=1000.0, share=2, cost_s=5.0)])[0] == {"a": 8}


def test_who_holds_a_share_keeps_it_against_an_equal() -> None:
    held = [
        job("a", deadline_s=1000.0, share=1, cost_s=5.0),
        job("b", deadline_s=1000.0, share=2, cost_s=5.0),
    ]
    assert allocated(held, num_gpus=3)[0] == {"a": 1, "b": 2}


def test_a_gain_below_the_hysteresis_is_let_pass() -> None:
    promised = [job("a", iterations=80.0, deadline_s=1000.0, share=4, cost_s=9.5)]  # 20 s or 19.5 s
    assert allocate(planned(promised)[0], hysteresis_s=1.0).num_gpus_by_job == {"a": 4}
    assert allocate(planned(promised)[0], hysteresis_s=0.4).num_gpus_by_job == {"a": 8}


def test_a_level_that_does_not_pay_is_passed_over() -> None:
    step = ScalingCurve((1, 2, 4), (1.0, 1.01, 4.0))
    assert allocated([job("a", step, deadline_s=1000.0)])[0] == {"a": 4}


def test_of_equals_the_first_gets_more() -> None:
    assert allocated([job("a", deadline_s=1000.0), job("b", deadline_s=1000.0)], num_gpus=3)[0] == {
        "a": 2,
        "b": 1,
    }


def test_a_late_job_still_gets_what_it_can() -> None:
    shares, _, schedules = allocated([job("late", deadline_s=5.0), job("kept", deadline_s=80.1)], num_gpus=4)
    assert shares["late"] > 0
    assert end_s(schedules["kept"]) <= 80.1


def test_nothing_to_allocate() -> None:
    shares, allocation, _ = allocated([])
    assert shares == {}
    assert allocation.valid_until_s == math.inf


# --- changes that are due in a moment --------------------------------------------------------------------


def brought_forward(*schedules: tuple[float, ...], num_gpus: int = 8, within_s: float = 1.0) -> list[Schedule]:
    """The schedules after changes planned within so short a time were made at once."""
    table = JobTable.of(job(f"job-{number}") for number in range(len(schedules)))
    for row, schedule in enumerate(schedules):
        table.write_schedule(row, schedule)
    rows, profile = np.arange(table.num_jobs), empty_availability_profile(64)
    assert sweep(profile, table.schedules, rows, 0.0, num_gpus) >= 0
    bring_changes_forward(profile, table.schedules, rows, np.zeros(len(rows), np.bool_), within_s)
    swept = empty_availability_profile(64)
    assert sweep(swept, table.schedules, rows, 0.0, num_gpus) >= 0
    assert np.array_equal(profile.free_B[: profile.size[0]], swept.free_B[: swept.size[0]]), "the profile was kept up"
    return [table.schedule(row) for row in range(table.num_jobs)]


def test_a_start_that_is_due_in_a_moment_is_made_now() -> None:
    assert brought_forward((0.5, 9.0, 4)) == [(ShareSegment(0.0, 9.0, 4),)]
    assert brought_forward((1.5, 9.0, 4)) == [(ShareSegment(1.5, 9.0, 4),)]


def test_a_change_that_is_due_in_a_moment_is_made_now() -> None:
    assert brought_forward((0.0, 0.5, 2, 0.5, 9.0, 4)) == [(ShareSegment(0.0, 9.0, 4),)]
    less: tuple[float, ...] = (0.0, 0.5, 4, 0.5, 9.0, 2)
    assert brought_forward(less) == [(ShareSegment(0.0, 0.5, 4), ShareSegment(0.5, 9.0, 2))], (
        "it counts on what it gives up"
    )
    apart: tuple[float, ...] = (0.0, 0.2, 2, 0.5, 9.0, 4)
    assert brought_forward(apart) == [(ShareSegment(0.0, 0.2, 2), ShareSegment(0.5, 9.0, 4))]


def test_no_change_is_brought_forward_onto_held_gpus() -> None:
    leaving: tuple[float, ...] = (0.0, 0.5, 8)
    coming: tuple[float, ...] = (0.5, 9.0, 4)
    assert brought_forward(leaving, coming) == [(ShareSegment(0.0, 0.5, 8),), (ShareSegment(0.5, 9.0, 4),)]
    assert brought_forward((0.0, 0.5, 4), coming) == [
        (ShareSegment(0.0, 0.5, 4),),
        (ShareSegment(0.0, 9.0, 4),),
    ]


def test_who_was_to_follow_a_job_that_ended_a_moment_early_starts_at_once() -> None:
    table = JobTable.of([job("next", iterations=8.0, deadline_s=100.0)])
    table.write_schedule(0, (0.9 * IMMINENT_S, 10.0, 1))  # after one that has just ended
    plan = AdmissionPlan(table, [0], PromisableGpus(1), 0.0)
    allocation = allocate(plan)
    assert allocation.num_gpus_by_job == {"next": 1}
    assert plan.schedules["next"][0].start_s == 0.0


def test_a_soft_deadline_is_planned_around_the_promises_and_a_hopeless_one_waits_its_turn() -> None:
    promised = [job("promised", iterations=32.0, deadline_s=8.1)]
    soft, free = job("soft", iterations=16.0), job("free", iterations=1.0)
    plan, rows = planned(promised, [soft, free], num_gpus=8)
    allocate(plan, RowsWithoutPromise(rows[::-1], {rows[0]: 4.1}))
    assert end_s(plan.table.schedule(rows[0])) <= 4.1, "although the other is shorter"
    assert end_s(plan.schedules["promised"]) <= 8.1
    plan, rows = planned(promised, [soft, free], num_gpus=5)
    shares = allocate(plan, RowsWithoutPromise(rows[::-1], {rows[0]: 1.0})).num_gpus_by_job
    assert shares == {"promised": 4, "soft": 0, "free": 1}


def test_padding_gets_what_nobody_else_would_use_and_nothing_else() -> None:
    promised, free = job("promised", deadline_s=1000.0), job("free")
    waiting = job("padding", iterations=1.0)  # the shortest of all: its class counts, not its length
    plan, rows = planned([promised], [free, waiting])
    shares = allocate(plan, RowsWithoutPromise(rows[:1], padding=rows[1:])).num_gpus_by_job
    assert (shares["promised"] + shares["free"], shares["padding"]) == (8, 0)
    slow = job("free", ScalingCurve((1,), (1.0,)))
    plan, rows = planned([], [slow, job("padding")])
    assert allocate(plan, RowsWithoutPromise(rows[:1], padding=rows[1:])).num_gpus_by_job == {"free": 1, "padding": 4}


def test_rows_appended_beside_a_plan_have_their_flags() -> None:
    plan = AdmissionPlan.build([job("promised", iterations=8.0, deadline_s=100.0)], 8, 0.0)
    rows = [plan.append(job(f"free-{number}", iterations=8.0)) for number in range(20)]
    allocate(plan, RowsWithoutPromise(rows))
    assert len(plan.changed) == len(plan.table.schedules.count_J)
    assert sum(plan.table.schedules.count_J[rows] > 0) == 7, "one GPU for each, until none is free"


def test_rows_that_a_plan_does_not_know_are_not_allocated() -> None:
    """Compiled loops check no bounds: they would write flags beyond the end of the array."""
    plan = AdmissionPlan.build([job("promised", iterations=8.0, deadline_s=100.0)], 8, 0.0)
    with pytest.raises(AssertionError):
        allocate(plan, RowsWithoutPromise([plan.table.append(job("free", iterations=8.0))]))


def test_a_thousand_jobs_without_a_promise_all_start_and_grow_on_two_thousand_gpus() -> None:
    jobs = [job(f"job-{index:04}", iterations=100.0 + index) for index in range(1000)]
    shares, _, _ = allocated([], jobs, num_gpus=2048)
    assert min(shares.values()) >= 1, "GPUs are free, and a job waits"
    assert sum(shares.values()) >= 2040, "GPUs are free, and a job gains from them"
