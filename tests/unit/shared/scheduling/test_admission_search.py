"""Where a job does not fit around the others, all of them are filled anew with it, in one order after another."""

from dataclasses import replace

import pytest

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_search import AdmissionSearch, earliest_deadline_around_s
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from tests.support.admission_plans import admit, fits_around
from tests.support.exact_replay import is_on_time, most_gpus_at_once

RIGID = ScalingCurve((2,), (2.0,))
LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 3.0))


def job(job_id: str, curve: ScalingCurve, iterations: float, deadline_s: float) -> SchedulableJob:
    return SchedulableJob(job_id=job_id, curve=curve, remaining_iterations=iterations, deadline_s=deadline_s)


def plan_of(num_gpus: int, *promised: SchedulableJob) -> AdmissionPlan:
    plan = AdmissionPlan.build([], num_gpus, 0.0)
    assert all(admit(plan, one) for one in promised)
    return plan


def assert_all_kept(plan: AdmissionPlan, *jobs: SchedulableJob) -> None:
    assert most_gpus_at_once(plan.schedules.values()) <= plan.num_gpus
    assert all(is_on_time(one, plan.schedules[one.job_id], 0.0) for one in jobs)


CROWD = (job("urgent", LINEAR, 60.0, 41.0), job("rigid", RIGID, 50.0, 61.0))
NARROW = job("narrow", ScalingCurve((1,), (1.0,)), 10.0, 41.0)  # two may run beside each other, before all is needed

CROWDED = (
    job("short", LINEAR, 10.0, 51.0),
    job("long", LINEAR, 60.0, 61.0),
    job("last", RIGID, 40.0, 91.0),
    job("next", RIGID, 40.0, 81.0),
)
STUBBORN = job("stubborn", ScalingCurve((1, 2), (1.0, 1.5)), 30.0, 71.0)


@pytest.mark.parametrize(
    ("promised", "arriving_job"),
    [
        (CROWD, NARROW),
        (CROWDED, STUBBORN),
        ((job("rigid", RIGID, 70.0, 61.0),), job("at-once", RIGID, 50.0, 31.0)),
    ],
)
def test_all_jobs_are_filled_anew_where_the_arriving_one_does_not_fit_around_them(
    promised: tuple[SchedulableJob, ...], arriving_job: SchedulableJob
) -> None:
    plan = plan_of(2, *promised)
    assert not fits_around(plan, arriving_job)
    assert AdmissionSearch(plan, 0).propose(arriving_job) is None, "without effort"
    proposal = AdmissionSearch(plan).propose(arriving_job)
    assert proposal is not None
    plan.accept(proposal)
    assert_all_kept(plan, *promised, arriving_job)


def test_the_same_question_has_the_same_answer_whatever_the_job_is_called() -> None:
    search = AdmissionSearch(plan_of(2, *CROWD))
    found = [search.propose(replace(NARROW, job_id=name)) for name in ("quote", "narrow", "quote")]
    assert len({proposal and proposal.schedule for proposal in found}) == 1


def test_a_quote_with_effort_is_earlier_and_tight() -> None:
    plan = plan_of(2, job("flexible", LINEAR, 50.0, 51.0), job("late", RIGID, 20.0, 91.0))
    asks, search = job("asks", RIGID, 60.0, 71.0), AdmissionSearch(plan)
    around_s, quoted_s = earliest_deadline_around_s(plan, asks), search.earliest_deadline_s(asks)
    assert quoted_s is not None
    assert around_s is not None
    assert quoted_s <= asks.deadline_s < around_s
    assert search.propose(replace(asks, deadline_s=quoted_s)) is not None
    assert search.propose(replace(asks, deadline_s=quoted_s - 1.0)) is None
    assert AdmissionSearch(plan, 0).propose(replace(asks, deadline_s=quoted_s)) is None, "with less effort"


def test_what_cannot_be_is_still_refused() -> None:
    search = AdmissionSearch(plan_of(2, *CROWD))
    assert search.propose(replace(NARROW, remaining_iterations=40.0)) is None
    assert search.propose(replace(NARROW, deadline_s=5.0)) is None


@pytest.mark.parametrize(
    ("promised", "asks", "less"),
    [
        ([job("rigid", RIGID, 50.0, 81.0), job("linear", LINEAR, 30.0, 61.0)], (RIGID, 70.0), 60.0),
        (
            [
                job("rigid", RIGID, 70.0, 111.0),
                job("urgent", ScalingCurve((1,), (1.0,)), 20.0, 21.0),
                job("linear", LINEAR, 50.0, 91.0),
            ],
            (ScalingCurve((1, 2), (1.0, 1.5)), 60.0),
            50.0,
        ),
    ],
)
def test_less_work_is_quoted_no_later_where_room_made_for_the_one_who_asks_was_in_its_own_way(
    promised: list[SchedulableJob], asks: tuple[ScalingCurve, float], less: float
) -> None:
    search, (curve, iterations) = AdmissionSearch(plan_of(2, *promised)), asks
    more_s = search.earliest_deadline_s(job("asks", curve, iterations, 61.0))
    less_s = search.earliest_deadline_s(job("asks", curve, less, 61.0))
    assert more_s is not None
    assert less_s is not None
    assert less_s <= more_s


def test_what_is_asked_of_a_plan_that_has_changed_fails() -> None:
    plan = plan_of(2, CROWD[0])
    search = AdmissionSearch(plan)
    assert admit(plan, CROWD[1])
    with pytest.raises(AssertionError, match="the plan has changed"):
        search.propose(NARROW)
