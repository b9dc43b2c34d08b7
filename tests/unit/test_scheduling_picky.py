"""Who asks for little of the pool is tried with all effort, who asks for more by a few orders of filling."""

from dataclasses import replace

import pytest

from shared.scheduling import picky
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.greedy import Greedy
from shared.scheduling.insistence import Insistence
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.picky import Picky
from shared.scheduling.scaling_curve import ScalingCurve
from tests.exact_replay import is_on_time


def job(job_id: str, curve: ScalingCurve, iterations: float, deadline_s: float) -> SchedulableJob:
    return SchedulableJob(job_id=job_id, curve=curve, remaining_iterations=iterations, deadline_s=deadline_s)


RIGID = ScalingCurve((2,), (2.0,))
LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 3.0))
CROWD = (job("urgent", LINEAR, 60.0, 41.0), job("rigid", RIGID, 50.0, 61.0))
NARROW = job("narrow", ScalingCurve((1,), (1.0,)), 10.0, 41.0)  # 10 of the pool's 82 GPU-seconds
FLEXIBLE, LATE = job("flexible", LINEAR, 50.0, 51.0), job("late", RIGID, 20.0, 91.0)


@pytest.fixture
def crowded() -> AdmissionPlan:
    """Two GPUs, on which greedy filling has no room for `narrow` before all is done."""
    plan = AdmissionPlan.build([], 2, 0.0)
    assert all(Greedy(plan).admit(one) for one in CROWD)
    assert Greedy(plan).propose(NARROW) is None
    return plan


@pytest.mark.parametrize(("little_part", "is_promised"), [(1 / 8, True), (1 / 9, False)])
def test_effort_is_made_for_who_asks_for_little(
    crowded: AdmissionPlan, little_part: float, is_promised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picky, "LITTLE_PART", little_part)
    proposal = Picky(crowded).propose(NARROW)
    assert (proposal is not None) is is_promised
    if proposal is not None:
        crowded.accept(proposal)
        assert all(is_on_time(one, crowded.schedules[one.job_id], 0.0) for one in (*CROWD, NARROW))


@pytest.mark.parametrize(
    ("little_part", "expected_s"),
    [
        pytest.param(1 / 2, 66.0, id="from when on there is room"),
        pytest.param(2 / 5, 75.0, id="from when on it asks for little"),
        pytest.param(1 / 4, 81.0, id="from when on greedy filling finds it"),
    ],
)
def test_a_quote_is_the_earliest_deadline_that_is_promised(
    little_part: float, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picky, "LITTLE_PART", little_part)
    plan = AdmissionPlan.build([], 2, 0.0)
    assert all(Greedy(plan).admit(one) for one in (FLEXIBLE, LATE))
    room, asks = Picky(plan), job("asks", RIGID, 60.0, 71.0)
    assert room.earliest_deadline_s(asks) == expected_s
    assert room.propose(replace(asks, deadline_s=expected_s)) is not None
    assert room.propose(replace(asks, deadline_s=expected_s - 1.0)) is None


def test_who_can_never_run_has_no_deadline(crowded: AdmissionPlan) -> None:
    wide = job("wide", ScalingCurve((4,), (4.0,)), 10.0, 1_000.0)
    assert Picky(crowded).earliest_deadline_s(wide) is None
    assert Insistence(crowded).earliest_deadline_s(wide) is None
