"""A profile-only request measures a job's speed and admits nothing."""

from typing import Any

import pytest

from elasticflow.history.profile_views import profile_view
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.admission.policy import wake_at_s
from elasticflow.services.admission.quote import quote
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import CancelJob, ProfileJob, QuoteDeadline, owned
from elasticflow.shared.state.idempotent_replies import idempotent_reply
from elasticflow.shared.state.job import Phase
from testbed.histories import LINEAR, NOW_S, History, best_effort, pool, spec, submit
from tests.support.worker_events import throughput


def ask(job_id: str = "p", **changes: Any) -> ProfileJob:
    return ProfileJob(job_id=job_id, tenant="lab", spec=best_effort(**{"model_name": "new", **changes}))


def profiling_level(history: History, rate: float, at_s: float) -> int:
    """One level of the profiling run of job p; returns its number of GPUs."""
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    job = history.state.live_jobs["p"]
    history.then(throughput(job, rate, at_s, dataset_size=1000))
    return len(job.gpus)


def test_an_unknown_profile_is_measured_and_no_job_is_left() -> None:
    history = pool(4)
    (asked,) = history.decided(ADMISSION, ask(min_gpus=2))
    assert isinstance(asked, events.ProfileRequested)
    assert asked.profile_only
    assert [profiling_level(history, rate, NOW_S + rate) for rate in (2.0, 3.5)] == [2, 4]
    history.decided(ALLOCATOR, now_s=NOW_S + 5.0)
    (measured,) = history.decided(ADMISSION, now_s=NOW_S + 5.0)
    assert measured == events.JobProfiled(job_id="p", iterations_per_s={2: 2.0, 4: 3.5}, at_s=NOW_S + 5.0)
    job = history.state.ended_jobs["p"]
    assert (job.phase, job.gpus) == (Phase.PROFILED, ())
    assert not history.state.live_jobs
    assert not history.state.usage
    history.decided(ALLOCATOR, now_s=NOW_S + 6.0)
    assert history.state.num_gpus_by_job == {}
    assert history.decided(ADMISSION, ask(min_gpus=2)) == ()
    assert idempotent_reply(history.state, ask(min_gpus=2)) == measured
    view = profile_view(history.state, best_effort(model_name="new", max_gpus=2))
    assert view is not None
    assert [(p.num_gpus, p.speedup, p.efficiency, p.is_in_range) for p in view.points] == [
        (2, 1.0, 1.0, True),
        (4, 1.75, 0.875, False),
    ]
    assert (view.dataset_size, view.complete) == (1000, False)


@pytest.mark.parametrize("names", [{"model_name": "linear"}, {"model_name": ""}])
def test_sharded_jobs_have_profiles_of_their_own(names: dict[str, str]) -> None:
    """Their steps send the parameters once more, and need less memory."""
    history = pool(8, curves={ask(**names).spec.profile_key: LINEAR})
    (measured,) = history.decided(ADMISSION, ask("whole", **names))
    assert isinstance(measured, events.JobProfiled)
    (asked,) = history.decided(ADMISSION, ask("sharded", shard_optimizer=True, **names))
    assert isinstance(asked, events.ProfileRequested)


def test_a_known_profile_is_answered_at_once() -> None:
    history = pool(8)
    (measured,) = history.decided(ADMISSION, ask(model_name="linear", max_gpus=2))
    assert measured == events.JobProfiled(job_id="p", iterations_per_s={1: 1.0, 2: 2.0}, at_s=NOW_S)
    assert not history.state.live_jobs
    assert not history.state.ended_jobs


def test_a_profile_request_waits_for_the_present_run_and_may_be_cancelled() -> None:
    history = pool(4)
    history.decided(ADMISSION, ask(), ask("q", model_name="other"))
    assert profiling_level(history, 1.0, NOW_S + 1.0) == 1
    assert history.state.live_jobs["q"].gpus == ()
    history.decided(ADMISSION, CancelJob(job_id="q", tenant="lab"))
    assert history.state.ended_jobs["q"].phase is Phase.CANCELLED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"min_gpus": 16}, "unrunnable"), ({"min_gpus": 3, "max_gpus": 3}, "invalid")],
)
def test_a_request_that_cannot_be_measured_is_rejected(changes: dict[str, Any], reason: str) -> None:
    (refused,) = pool(4).decided(ADMISSION, ask(**changes))
    assert isinstance(refused, events.JobRejected)
    assert refused.reason == reason


def test_a_name_belongs_to_a_job_or_to_a_profile_request() -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("p"))
    (refused,) = history.decided(ADMISSION, ask(model_name="linear"))
    assert isinstance(refused, events.JobRejected)
    assert refused.reason == "duplicate"
    assert profile_view(history.state, best_effort(model_name="unknown")) is None
    known = profile_view(history.state, best_effort())
    assert known is not None
    assert {point.num_gpus: point.iterations_per_s for point in known.points} == LINEAR


def test_a_quote_rests_on_the_profile_of_the_tenant_that_asks() -> None:
    history = pool(4)
    history.decided(ADMISSION, owned(submit("a", "alice")))
    history.then(events.ProfileCompleted(profile_key="alice/linear/b64", iterations_per_s={1: 50.0}, at_s=NOW_S))

    def quoted_s(tenant: str) -> float:
        question = QuoteDeadline(tenant=tenant, spec=spec(owner="alice"))  # whatever it claims
        quoted = quote(history.state, question, NOW_S).earliest_deadline_s
        assert quoted is not None
        return quoted

    assert quoted_s("alice") < quoted_s("bob") == quoted_s("mallory")


def measured_level(history: History, job_id: str, rate: float, at_s: float) -> None:
    """One level of a profiling run."""
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    history.then(throughput(history.state.live_jobs[job_id], rate, at_s, dataset_size=1000))


def test_a_deadline_that_passes_while_the_speed_is_measured_is_rejected_with_a_counteroffer() -> None:
    history = pool(2)
    two_seconds = {"model_name": "new", "deadline_s": None, "deadline_in_s": 2.0}
    history.decided(ADMISSION, submit("a", **two_seconds), submit("b", **two_seconds), now_s=NOW_S)
    assert wake_at_s(history.state) == NOW_S + 2.0
    history.decided(ALLOCATOR, now_s=NOW_S)
    assert history.state.live_jobs["a"].num_gpus
    assert wake_at_s(history.state) is None, "no decision is due before the measurement ends"
    assert history.decided(ADMISSION, now_s=NOW_S + 2.0) == ()
    measured_level(history, "a", 1.0, NOW_S + 3.0)
    measured_level(history, "a", 1.9, NOW_S + 4.0)
    history.decided(ALLOCATOR, now_s=NOW_S + 4.5)
    rejected = history.decided(ADMISSION, now_s=NOW_S + 5.0)
    assert [(event.job_id, event.reason) for event in rejected] == [("a", "deadline"), ("b", "deadline")]
    for event in rejected:
        assert event.earliest_deadline_s > NOW_S + 50.0
        assert event.offers[0].deadline_s == event.earliest_deadline_s
    taken = submit("c", model_name="new", deadline_s=rejected[0].earliest_deadline_s)
    (admitted,) = history.decided(ADMISSION, taken, now_s=NOW_S + 5.0)
    assert isinstance(admitted, events.JobAdmitted)


def test_a_deadline_that_passes_before_a_gpu_is_free_to_measure_is_rejected_with_advice() -> None:
    history = pool(1)
    history.decided(ADMISSION, submit("a", model_name="new", deadline_s=NOW_S + 2.0), now_s=NOW_S)
    (rejected,) = history.decided(ADMISSION, now_s=NOW_S + 2.0)
    assert rejected.explanation.startswith("its deadline passed before its speed was measured; no GPU was free")


def test_hyperparameters_that_do_not_change_the_speed_share_one_profile() -> None:
    def key(*neutral: str, **hyperparameters: float) -> str:
        return spec(model_name="", hyperparameters=hyperparameters, speed_neutral=neutral).measured_key

    assert key("rate", rate=0.1, width=2) == key("rate", rate=0.2, width=2)
    assert key("rate", rate=0.1, width=2) != key("rate", rate=0.1, width=4)
    assert key(rate=0.1, width=2) != key(rate=0.2, width=2)
