"""Where greedy filling says no, other ways to make room are there; none of them knows when the newcomer is due."""

from dataclasses import replace

import numpy as np
import pytest

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.greedy import Greedy
from shared.scheduling.insistence import MANY_WAYS, Insistence
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.scaling_curve import ScalingCurve
from shared.scheduling.ways import FEWEST_WAYS, ways
from tests.exact_replay import is_on_time, most_gpus_at_once

RIGID = ScalingCurve((2,), (2.0,))
LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 3.0))


def job(job_id: str, curve: ScalingCurve, iterations: float, deadline_s: float) -> SchedulableJob:
    return SchedulableJob(job_id=job_id, curve=curve, remaining_iterations=iterations, deadline_s=deadline_s)


def plan_of(num_gpus: int, *promised: SchedulableJob) -> AdmissionPlan:
    plan = AdmissionPlan.build([], num_gpus, 0.0)
    assert all(Greedy(plan).admit(one) for one in promised)
    return plan


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


@pytest.mark.parametrize(("crowd", "newcomer"), [(CROWD, NARROW), (CROWDED, STUBBORN)])
def test_other_ways_find_room_that_filling_by_deadline_misses(
    crowd: tuple[SchedulableJob, ...], newcomer: SchedulableJob
) -> None:
    plan = plan_of(2, *crowd)
    assert Greedy(plan).propose(newcomer) is None
    proposal = Insistence(plan).propose(newcomer)
    assert proposal is not None
    assert proposal.moved
    plan.accept(proposal)
    assert_all_kept(plan, *crowd, newcomer)


def test_the_same_question_has_the_same_answer_whatever_the_job_is_called() -> None:
    insistence = Insistence(plan_of(2, *CROWD))
    found = [insistence.propose(replace(NARROW, job_id=name)) for name in ("quote", "narrow", "quote")]
    assert len({proposal and proposal.schedule for proposal in found}) == 1


def test_a_quote_with_effort_is_earlier_and_tight() -> None:
    plan = plan_of(2, job("flexible", LINEAR, 50.0, 51.0), job("late", RIGID, 20.0, 91.0))
    asks, insistence = job("asks", RIGID, 60.0, 71.0), Insistence(plan)
    greedy_s, quoted_s = Greedy(plan).earliest_deadline_s(asks), insistence.earliest_deadline_s(asks)
    assert quoted_s is not None
    assert greedy_s is not None
    assert quoted_s <= asks.deadline_s < greedy_s
    assert insistence.propose(replace(asks, deadline_s=quoted_s)) is not None
    assert insistence.propose(replace(asks, deadline_s=quoted_s - 1.0)) is None
    assert Insistence(plan, 1).propose(replace(asks, deadline_s=quoted_s)) is None, "with less effort"


def test_what_cannot_be_is_still_refused() -> None:
    insistence = Insistence(plan_of(2, *CROWD))
    assert insistence.propose(replace(NARROW, remaining_iterations=40.0)) is None
    assert insistence.propose(replace(NARROW, deadline_s=5.0)) is None


@pytest.mark.parametrize(
    ("num_jobs", "num_ways"), [(0, 0), (1, 2), (3, 20), (40, 191), (1_000, 8), (100_000, FEWEST_WAYS)]
)
def test_ways_differ_and_a_large_pool_has_fewer(num_jobs: int, num_ways: int) -> None:
    order_K = np.arange(100, 100 + num_jobs)
    found = list(ways(order_K, np.linspace(-5.0, 5.0, num_jobs), MANY_WAYS))
    anew = {(way.place - way.num_kept, way.order_K[way.num_kept :].tobytes()) for way in found}
    assert len(anew) == len(found) == num_ways
    for way in found:
        assert sorted(way.order_K) == list(order_K)
        assert 0 <= way.num_kept <= way.place <= num_jobs > way.num_kept
