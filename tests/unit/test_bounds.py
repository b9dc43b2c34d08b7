"""An operator bounds a job's GPUs for a while: it is allocated so, and never at the cost of a promise."""

from typing import Any

import pytest

from elasticflow.story import story
from elasticflow.views import job_views
from services.admission.policy import POLICY as ADMISSION
from services.allocator.policy import POLICY as ALLOCATOR
from services.placement.policy import POLICY as PLACEMENT
from shared.messages import events
from shared.messages.cluster import TenantQuota, segments
from shared.messages.commands import CancelJob, ScaleJob
from shared.messages.events import PlanDecided
from shared.messages.gpu_range import GpuBound
from shared.messages.job import JobClass
from shared.messages.outcome import told_before
from shared.messages.snapshot import dump, load
from tests.histories import NOW_S, History, pool, submit


def wish(job_id: str = "a", tenant: str = "lab", **changes: Any) -> ScaleJob:
    return ScaleJob(job_id=job_id, tenant=tenant, **changes)


def scaled(history: History, asked: ScaleJob, now_s: float = NOW_S) -> events.JobScaled:
    (answer,) = history.decided(ADMISSION, asked, now_s=now_s)
    assert isinstance(answer, events.JobScaled), answer
    return answer


def refused(history: History, asked: ScaleJob, now_s: float = NOW_S) -> events.ScaleRefused:
    before = history.state.job(asked.job_id)
    (answer,) = history.decided(ADMISSION, asked, now_s=now_s)
    assert isinstance(answer, events.ScaleRefused), answer
    assert history.state.job(asked.job_id) is before
    return answer


def shares(history: History, now_s: float = NOW_S) -> dict[str, int]:
    history.decided(ALLOCATOR, now_s=now_s)
    history.decided(PLACEMENT, now_s=now_s)
    return {job_id: job.num_gpus for job_id, job in sorted(history.state.live_jobs.items())}


def slack(*num_gpus: int, **config: Any) -> History:
    """Job a has a promise that one GPU keeps easily."""
    history = pool(*num_gpus, **config)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 400.0))
    return history


# --- scale in -------------------------------------------------------------------------------------------


def test_a_job_that_is_scaled_in_gives_up_what_pays_and_keeps_its_promise() -> None:
    history = slack(8)
    assert shares(history) == {"a": 8}
    answer = scaled(history, wish(max_gpus=2))
    assert {s.num_gpus for s in segments(answer.minimum_satisfactory_share)} <= {1, 2}
    assert max(s.end_s for s in segments(answer.minimum_satisfactory_share)) <= NOW_S + 400.0
    assert shares(history) == {"a": 2}


def test_a_number_on_which_the_promise_would_break_is_refused_with_one_that_is_granted() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 60.0))
    answer = refused(history, wish(max_gpus=1))
    assert answer.num_gpus == 2
    assert "could not be kept; 2 could be had" in answer.explanation
    scaled(history, wish(max_gpus=2))


def test_three_at_most_is_two() -> None:
    history = slack(8)
    scaled(history, wish(max_gpus=3))
    assert shares(history) == {"a": 2}


# --- scale out ------------------------------------------------------------------------------------------


def test_a_job_that_is_scaled_out_takes_what_others_have_beyond_their_promises() -> None:
    history = slack(8)
    history.decided(ADMISSION, submit("b", deadline_s=NOW_S + 500.0))
    assert shares(history) == {"a": 4, "b": 4}
    answer = scaled(history, wish(min_gpus=8))
    assert set(answer.replanned) == {"b"}, "it makes room, still in time"
    assert max(s.end_s for s in segments(answer.replanned["b"])) <= NOW_S + 500.0
    assert shares(history) == {"a": 8, "b": 0}


def test_what_others_were_promised_is_not_to_be_had() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("b", deadline_s=NOW_S + 30.0, max_gpus=4))  # on 4 GPUs, from now on
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 400.0))
    answer = refused(history, wish(min_gpus=8))
    assert answer.num_gpus == 4
    scaled(history, wish(min_gpus=4))
    assert shares(history)["b"] == 4


def test_jobs_without_a_promise_get_what_promises_leave() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("b", deadline_s=NOW_S + 30.0, max_gpus=4))
    spare = {"job_class": JobClass.BEST_EFFORT, "deadline_s": None}
    history.decided(ADMISSION, submit("a", **spare), submit("c", max_iterations=50, **spare))
    assert shares(history) == {"a": 2, "b": 4, "c": 2}
    assert refused(history, wish(min_gpus=8)).num_gpus == 4
    scaled(history, wish(min_gpus=4))
    assert shares(history) == {"a": 4, "b": 4, "c": 0}  # an operator's word comes before the shortest


# --- how long it stands ---------------------------------------------------------------------------------


def test_a_bound_ends_by_itself_and_the_service_wakes_for_it() -> None:
    history = slack(8)
    scaled(history, wish(max_gpus=1, until_s=NOW_S + 50.0))
    assert shares(history) == {"a": 1}
    assert ADMISSION.wake_at_s(history.state) == NOW_S + 50.0
    assert history.decided(ADMISSION, now_s=NOW_S + 49.0) == ()
    (over,) = history.decided(ADMISSION, now_s=NOW_S + 50.0)
    assert over == events.BoundEnded(job_id="a", reason="its time is over", at_s=NOW_S + 50.0)
    assert shares(history, NOW_S + 50.0) == {"a": 8}
    assert not history.state.bounds
    assert ADMISSION.wake_at_s(history.state) is None


def test_a_bound_is_released_and_only_where_one_stands() -> None:
    history = slack(8)
    assert "no bound stands" in refused(history, wish()).explanation
    scaled(history, wish(max_gpus=1))
    (over,) = history.decided(ADMISSION, wish())
    assert isinstance(over, events.BoundEnded)
    assert shares(history) == {"a": 8}


def test_a_new_bound_takes_the_place_of_the_one_before() -> None:
    history = slack(8)
    scaled(history, wish(max_gpus=1))
    scaled(history, wish(min_gpus=4))
    assert history.state.bounds["a"] == GpuBound(min_gpus=4, max_gpus=None, until_s=None)
    assert shares(history)["a"] >= 4


def test_the_same_wish_again_is_answered_and_changes_nothing() -> None:
    history = slack(8)
    answer = scaled(history, wish(max_gpus=2, until_s=NOW_S + 50.0))
    before = history.state
    assert history.decided(ADMISSION, wish(max_gpus=2, until_s=NOW_S + 50.0)) == ()
    assert history.state is before
    told = told_before(history.state, wish(max_gpus=2, until_s=NOW_S + 50.0))
    assert isinstance(told, events.JobScaled)
    assert (told.max_gpus, told.until_s) == (answer.max_gpus, answer.until_s)
    assert told.minimum_satisfactory_share == answer.minimum_satisfactory_share


def test_a_submission_that_comes_again_finds_its_bounded_job() -> None:
    history = slack(8)
    scaled(history, wish(max_gpus=2))
    assert history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 400.0)) == ()


def test_a_promise_at_risk_ends_the_bounds_on_promised_jobs() -> None:
    history = slack(8)
    spare = {"job_class": JobClass.BEST_EFFORT, "deadline_s": None}
    history.decided(ADMISSION, submit("b", deadline_s=NOW_S + 500.0), submit("c", **spare))
    scaled(history, wish(min_gpus=2))
    scaled(history, wish("c", max_gpus=1))
    late = events.JobAtRisk(
        job_id="b", generation=0, projected_finish_s=None, deadline_s=NOW_S + 500.0, at_s=NOW_S + 1.0
    )
    history.then(late)
    (over,) = history.decided(ADMISSION, now_s=NOW_S + 1.0)
    assert over == events.BoundEnded(job_id="a", reason="the promise of b is at risk", at_s=NOW_S + 1.0)
    assert set(history.state.bounds) == {"c"}  # it is in nobody's way
    scaled(history, wish(min_gpus=2), NOW_S + 2.0)


def test_an_ended_job_takes_its_bound_along() -> None:
    history = slack(8)
    scaled(history, wish(max_gpus=1, until_s=NOW_S + 50.0))
    assert load(dump(history.state)) == history.state
    history.decided(ADMISSION, CancelJob(job_id="a", tenant="lab"))
    assert not history.state.bounds
    assert ADMISSION.wake_at_s(history.state) is None
    assert "ended already" in refused(history, wish(max_gpus=2)).explanation


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (wish("nobody", min_gpus=2), "has no such job"),
        (wish(tenant="other", min_gpus=2), "tenant other has no such job"),
        (wish(min_gpus=2, until_s=NOW_S - 3.0), "3 s in the past"),
        (
            wish(min_gpus=3, max_gpus=3),
            "min_gpus: jobs get 1, 2, 4, 8, ... GPUs, and none of these lies from 3 to 3",
        ),
        (wish(min_gpus=16), "was not measured to run on 16.. GPUs here, where there are 8; 8 could be had"),
        (wish(min_gpus=8), "it runs on 2..4 GPUs only, as its user says; 4 could be had"),
        (wish(max_gpus=1), "it runs on 2..4 GPUs only, as its user says; 2 could be had"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_in_words(asked: ScaleJob, words: str) -> None:
    own: dict[str, Any] = {"min_gpus": 2, "max_gpus": 4} if asked.min_gpus == 8 or asked.max_gpus == 1 else {}
    history = pool(8)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 400.0, **own))
    explanation = refused(history, asked).explanation
    assert words in explanation


def test_more_gpu_seconds_count_for_the_quota() -> None:
    curves = {"linear/b64": {1: 1.0, 2: 1.2, 4: 1.3}}
    quota = TenantQuota(max_gpu_hours_per_day=0.05)  # 180 GPU-seconds
    history = slack(8, curves=curves, quotas={"lab": quota})
    answer = refused(history, wish(min_gpus=4))
    assert "GPU-hours" in answer.explanation
    free = slack(8, curves=curves)
    assert scaled(free, wish(min_gpus=4)).gpu_seconds > 150.0


# --- what is told of it ---------------------------------------------------------------------------------


def test_the_story_and_the_list_of_jobs_tell_of_it() -> None:
    history = slack(8)
    shares(history)
    entries, before = [], history.state

    def heard(event: Any) -> None:
        decided = PlanDecided(service="admission", based_on=0, now_s=NOW_S, events=(event,))
        entries.append((len(entries) + 1, NOW_S, decided))

    answer = scaled(history, wish(max_gpus=2, until_s=NOW_S + 50.0))
    (view,) = job_views(history.state, NOW_S)
    assert (view.gpu_range, view.bound) == ("..2", history.state.bounds["a"])
    heard(
        events.JobAdmitted(
            job_id="a",
            tenant="lab",
            spec=before.live_jobs["a"].spec,  # pyright: ignore[reportArgumentType]
            deadline_s=NOW_S + 400.0,
            minimum_satisfactory_share=(),
            gpu_seconds=1.0,
            at_s=NOW_S,
        )
    )
    heard(answer)
    heard(events.ScaleRefused(job_id="a", explanation="no; 2 could be had", num_gpus=2, at_s=NOW_S))
    heard(events.BoundEnded(job_id="a", reason="its time is over", at_s=NOW_S))
    told = [sentence.text for sentence in story(entries, "a")]
    assert told[1].startswith("bounded by its operator to at most 2 GPUs until ")
    assert told[1].endswith(" keep its deadline")
    assert told[2:] == [
        "a wish to scale it was refused: no; 2 could be had",
        "no longer bounded: its time is over",
    ]
