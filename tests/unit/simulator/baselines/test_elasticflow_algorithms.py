"""ElasticFlow's Algorithms 1 and 2 on cases that can be done by hand; a slot is a minute."""

from dataclasses import replace
from typing import Any

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.baselines.baseline import BaselineJob
from elasticflow.simulator.baselines.elasticflow_algorithms import ElasticFlowAlgorithms

NOW_S = 10_000.0
PAPER = ScalingCurve((1, 2, 4), (1.0, 1.5, 2.0))  # Figure 4(a)
LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 4.0))
POLICY = ElasticFlowAlgorithms()
RESERVING = ElasticFlowAlgorithms("edf-elastic-reserving", admission=False)


def job(job_id: str, minutes: float, deadline_minutes: float | None, **changes: Any) -> BaselineJob:
    """minutes: of work on one GPU. No deadline: best effort."""
    base = BaselineJob(
        job_id=job_id,
        submitted_at_s=NOW_S,
        deadline_s=None if deadline_minutes is None else NOW_S + 60.0 * deadline_minutes,
        job_class=JobClass.BEST_EFFORT if deadline_minutes is None else JobClass.SLO,
        curve=PAPER,
        remaining_iterations=60.0 * minutes,
        num_iterations=60.0 * minutes,
        requested_num_gpus=1,
        held_since_s=NOW_S,
    )
    return replace(base, **changes)


def shares(policy: ElasticFlowAlgorithms, *jobs: BaselineJob, num_gpus: int = 4) -> dict[str, int]:
    return dict(policy.shares(jobs, num_gpus, NOW_S).num_gpus_by_job)


A = job("a", 1.0, 1.0, curve=ScalingCurve((1,), (1.0,)))  # one GPU for the first slot
B = job("b", 1.0, 1.0, curve=ScalingCurve((2,), (1.0,)))  # two


def test_the_example_of_figure_4_needs_one_gpu_and_then_four() -> None:
    c = job("c", 3.0, 2.0)
    assert POLICY.admits(c, [A, B], 4, NOW_S)
    answer = POLICY.shares((c, B, A), 4, NOW_S)
    assert answer.num_gpus_by_job == {"a": 1, "b": 2, "c": 1}
    assert answer.valid_until_s == NOW_S + 60.0  # four then
    assert not POLICY.admits(job("c", 3.01, 2.0), [A, B], 4, NOW_S)
    assert POLICY.admits(job("c", 4.0, 2.0), [], 4, NOW_S)


def test_a_job_is_rejected_that_would_make_an_admitted_one_late() -> None:
    first = job("first", 4.0, 2.0)  # all four GPUs for two minutes
    assert not POLICY.admits(job("urgent", 0.5, 1.0), [first], 4, NOW_S)
    assert POLICY.admits(job("urgent", 0.5, 1.0), [replace(first, deadline_s=NOW_S + 180.0)], 4, NOW_S)


def test_a_job_that_is_late_anyway_does_not_keep_others_out() -> None:
    lost = job("lost", 9.0, 1.0, curve=ScalingCurve((1,), (1.0,)))
    assert POLICY.admits(job("later", 4.0, 3.0), [lost], 4, NOW_S)
    assert not POLICY.admits(lost, [], 4, NOW_S)


def test_best_effort_jobs_and_policies_without_admission_reject_no_job() -> None:
    assert POLICY.admits(job("free", 99.0, None), [job("first", 4.0, 2.0)], 4, NOW_S)
    assert RESERVING.admits(job("hopeless", 99.0, 1.0), [], 4, NOW_S)


def test_gpus_that_are_left_go_where_they_save_the_most_gpu_time() -> None:
    straight = job("straight", 6.0, 6.0, curve=LINEAR)
    bent = job("bent", 6.0, 6.0)
    assert shares(POLICY, straight, bent, num_gpus=3) == {"straight": 2, "bent": 1}
    assert shares(POLICY, straight, bent, num_gpus=6) == {"straight": 4, "bent": 2}


def test_no_gpu_goes_where_it_makes_the_job_slower() -> None:
    falling = ScalingCurve((1, 2, 4), (1.0, 1.5, 1.4))
    assert shares(POLICY, job("a", 6.0, 6.0, curve=falling)) == {"a": 2}


def test_best_effort_jobs_get_gpus_after_the_minimum_satisfactory_shares() -> None:
    due = job("due", 4.0, 2.0)
    assert shares(POLICY, due, job("free", 5.0, None)) == {"due": 4}
    assert shares(POLICY, due, job("free", 5.0, None), num_gpus=5) == {"due": 4, "free": 1}
    loose = replace(due, deadline_s=NOW_S + 240.0)
    assert shares(POLICY, loose, job("free", 5.0, None), num_gpus=2) == {"due": 1, "free": 1}


def test_a_hopeless_job_reserves_its_largest_level_before_later_deadlines() -> None:
    hopeless = job("hopeless", 9.0, 1.0)
    fine = job("fine", 1.0, 2.0, curve=LINEAR)
    assert shares(RESERVING, hopeless, fine) == {"hopeless": 4}
    assert shares(RESERVING, hopeless, fine, num_gpus=5) == {"hopeless": 4, "fine": 1}
    assert shares(RESERVING, replace(hopeless, remaining_iterations=60.0), fine) == {"hopeless": 2, "fine": 2}


def test_a_deadline_far_away_is_planned_in_longer_slots() -> None:
    patient = job("patient", 60.0 * 24 * 30, 60.0 * 24 * 40)
    assert POLICY.admits(patient, [], 4, NOW_S)
    assert not POLICY.admits(replace(patient, deadline_s=NOW_S + 60.0 * 60 * 24 * 14), [], 4, NOW_S)
    assert POLICY.admits(replace(patient, deadline_s=NOW_S + 60.0 * 60 * 24 * 15.01), [], 4, NOW_S)
