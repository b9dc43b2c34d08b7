"""Algorithm 2: promises first, one level for each waiting job, then by marginal return."""

import math
from collections.abc import Mapping

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.allocation import Allocation, allocate
from shared.scheduling.free_profile import Segment
from shared.scheduling.progressive_filling import SchedulableJob, finish_s
from shared.scheduling.scaling_curve import ScalingCurve

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
        resize_cost_s=cost_s,
    )


def allocated(
    promised: list[SchedulableJob], others: list[SchedulableJob], num_gpus: int = 8
) -> tuple[Mapping[str, int], Allocation]:
    plan = AdmissionPlan.build(promised, num_gpus, 0.0)
    allocation = allocate(plan, promised, others, num_gpus, 0.0)
    return allocation.num_gpus_by_job, allocation


def test_a_job_alone_gets_all_that_makes_it_faster() -> None:
    shares, allocation = allocated([job("a", deadline_s=1000.0)], [])
    assert shares == {"a": 8}
    assert allocation.schedules["a"] == (Segment(0.0, 10.0, 8),)
    assert allocation.valid_until_s == 10.0


def test_what_is_left_goes_where_it_costs_the_fewest_gpu_seconds() -> None:
    shares, _ = allocated([job("concave", CONCAVE, deadline_s=1000.0), job("linear", deadline_s=1000.0)], [])
    assert shares == {"linear": 4, "concave": 4}
    shares, _ = allocated(
        [job("concave", CONCAVE, deadline_s=1000.0), job("linear", deadline_s=1000.0)], [], 4
    )
    assert shares == {"linear": 2, "concave": 2}
    shares, _ = allocated(
        [job("concave", CONCAVE, deadline_s=1000.0), job("linear", deadline_s=1000.0)], [], 3
    )
    assert shares == {"linear": 2, "concave": 1}


def test_everyone_waiting_gets_its_smallest_level_before_anyone_gets_more() -> None:
    waiting = [job(f"free-{n}") for n in range(3)]
    shares, _ = allocated([job("promised", deadline_s=40.0)], waiting, num_gpus=5)
    assert shares == {"promised": 2, "free-0": 1, "free-1": 1, "free-2": 1}
    shares, _ = allocated([job("promised", deadline_s=40.0)], waiting, num_gpus=4)
    assert shares == {"promised": 2, "free-0": 1, "free-1": 1, "free-2": 0}


def test_a_job_without_a_promise_gives_way_when_a_promise_needs_its_gpus() -> None:
    promised = [job("a", iterations=8.0, deadline_s=2.0), job("b", iterations=64.0, deadline_s=10.0)]
    shares, allocation = allocated(promised, [job("free")])
    assert shares == {"a": 4, "b": 4, "free": 0}
    assert allocation.valid_until_s == 2.0


def test_a_job_keeps_its_share_where_a_change_brings_nothing() -> None:
    shares, _ = allocated([job("a", deadline_s=1000.0, share=2, cost_s=50.0)], [])
    assert shares == {"a": 2}  # 40 s as it is; 50 s of resize for 10 s of work
    shares, _ = allocated([job("a", deadline_s=1000.0, share=2, cost_s=5.0)], [])
    assert shares == {"a": 8}


def test_who_holds_a_share_keeps_it_against_an_equal() -> None:
    held = [
        job("a", deadline_s=1000.0, share=1, cost_s=5.0),
        job("b", deadline_s=1000.0, share=2, cost_s=5.0),
    ]
    shares, _ = allocated(held, [], num_gpus=3)
    assert shares == {"a": 1, "b": 2}


def test_a_gain_below_the_hysteresis_is_let_pass() -> None:
    promised = [job("a", iterations=80.0, deadline_s=1000.0, share=4, cost_s=9.5)]
    plan = AdmissionPlan.build(promised, 8, 0.0)
    assert allocate(plan, promised, [], 8, 0.0, hysteresis_s=1.0).num_gpus_by_job == {
        "a": 4
    }  # 20 s or 19.5 s
    assert allocate(plan, promised, [], 8, 0.0, hysteresis_s=0.4).num_gpus_by_job == {"a": 8}


def test_a_level_that_does_not_pay_is_passed_over() -> None:
    step = ScalingCurve((1, 2, 4), (1.0, 1.01, 4.0))
    shares, _ = allocated([job("a", step, deadline_s=1000.0)], [])
    assert shares == {"a": 4}


def test_ties_go_by_job_id() -> None:
    shares, _ = allocated([job("b", deadline_s=1000.0), job("a", deadline_s=1000.0)], [], num_gpus=3)
    assert shares == {"a": 2, "b": 1}


def test_a_late_job_still_gets_what_it_can() -> None:
    promised = [job("late", deadline_s=5.0), job("kept", deadline_s=80.0)]
    shares, allocation = allocated(promised, [], num_gpus=4)
    assert shares["late"] > 0
    assert finish_s(allocation.schedules["kept"]) <= 80.0


def test_nothing_to_allocate() -> None:
    shares, allocation = allocated([], [])
    assert shares == {}
    assert allocation.valid_until_s == math.inf
