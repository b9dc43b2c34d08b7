"""Where greedy filling says no, other orders and a linear program find ways that were there."""

from dataclasses import replace

import pytest

from shared.scheduling import insistence
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.insistence import Insistence
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.quoting import earliest_deadline_s
from shared.scheduling.scaling_curve import ScalingCurve
from tests.exact_replay import is_on_time, most_gpus_at_once

RIGID = ScalingCurve((2,), (2.0,))
LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 3.0))


def job(job_id: str, curve: ScalingCurve, iterations: float, deadline_s: float) -> SchedulableJob:
    return SchedulableJob(job_id=job_id, curve=curve, remaining_iterations=iterations, deadline_s=deadline_s)


def insisting(num_gpus: int, *promised: SchedulableJob) -> tuple[AdmissionPlan, Insistence]:
    plan = AdmissionPlan.build([], num_gpus, 0.0)
    assert all(plan.admit(one) for one in promised)
    by_id = {one.job_id: one for one in promised}
    return plan, Insistence(plan, lambda: [by_id[plan.table.job_ids[row]] for row in plan.promised])


def assert_all_kept(plan: AdmissionPlan, *jobs: SchedulableJob) -> None:
    assert most_gpus_at_once(plan.schedules.values()) <= plan.num_gpus
    assert all(is_on_time(one, plan.schedules[one.job_id], 0.0) for one in jobs)


CROWD = (job("urgent", LINEAR, 60.0, 41.0), job("rigid", RIGID, 50.0, 61.0))
NARROW = job(
    "narrow", ScalingCurve((1,), (1.0,)), 10.0, 41.0
)  # two may run beside each other, before all is needed

CROWDED = (
    job("short", LINEAR, 10.0, 51.0),
    job("long", LINEAR, 60.0, 61.0),
    job("last", RIGID, 40.0, 91.0),
    job("next", RIGID, 40.0, 81.0),
)
STUBBORN = job("stubborn", ScalingCurve((1, 2), (1.0, 1.5)), 30.0, 71.0)


def test_another_order_finds_a_way_that_filling_by_deadline_misses() -> None:
    plan, harder = insisting(2, *CROWD)
    assert plan.propose(NARROW) is None
    proposal = harder.propose_in_other_orders(NARROW)
    assert proposal is not None
    assert proposal.moved
    plan.accept(proposal)
    assert_all_kept(plan, *CROWD, NARROW)


def test_the_linear_program_finds_a_way_that_orders_near_the_deadlines_miss() -> None:
    plan, harder = insisting(2, *CROWDED)
    assert harder.propose_in_other_orders(STUBBORN) is None
    proposal = harder.propose(STUBBORN)
    assert proposal is not None
    plan.accept(proposal)
    assert_all_kept(plan, *CROWDED, STUBBORN)


def test_the_same_question_has_the_same_answer_whatever_the_job_is_called() -> None:
    _, harder = insisting(2, *CROWD)
    found = [harder.propose(replace(NARROW, job_id=name)) for name in ("quote", "narrow", "quote")]
    assert len({proposal and proposal.schedule for proposal in found}) == 1


def test_a_quote_with_effort_is_earlier_and_tight() -> None:
    plan, harder = insisting(2, job("flexible", LINEAR, 50.0, 51.0), job("late", RIGID, 20.0, 91.0))
    asks = job("asks", RIGID, 60.0, 71.0)
    greedy_s = earliest_deadline_s(plan, asks)
    quoted_s = earliest_deadline_s(plan, asks, harder.propose_in_other_orders, harder.propose)
    assert quoted_s is not None
    assert greedy_s is not None
    assert quoted_s <= asks.deadline_s < greedy_s
    assert harder.propose(replace(asks, deadline_s=quoted_s)) is not None
    assert harder.propose(replace(asks, deadline_s=quoted_s - 1.0)) is None


def test_what_cannot_be_is_still_refused() -> None:
    _, harder = insisting(2, *CROWD)
    assert harder.propose(replace(NARROW, remaining_iterations=40.0)) is None
    assert harder.propose(replace(NARROW, deadline_s=5.0)) is None


def test_a_large_pool_tries_fewer_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insistence, "MAX_FILLINGS", 1)  # as if these three were thousands
    plan, harder = insisting(2, *CROWDED)
    assert plan.propose(STUBBORN) is None
    assert harder.propose(STUBBORN) is None
