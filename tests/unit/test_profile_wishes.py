"""To know how fast something trains, nothing has to be submitted: it is measured, and that is all."""

from typing import Any

import pytest

from elasticflow.profiles import profile_view
from services.admission.policy import POLICY as ADMISSION
from services.allocator.policy import POLICY as ALLOCATOR
from services.placement.policy import POLICY as PLACEMENT
from shared.messages import events
from shared.messages.commands import CancelJob, ProfileJob
from shared.messages.job_state import Phase
from shared.messages.outcome import told_before
from tests.histories import LINEAR, NOW_S, History, best_effort, pool, submit


def ask(job_id: str = "p", **changes: Any) -> ProfileJob:
    return ProfileJob(job_id=job_id, tenant="lab", spec=best_effort(**{"model_name": "new", **changes}))


def pre_run(history: History, rate: float, at_s: float) -> int:
    """One level of the pre-run of job p; on how many GPUs."""
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    job = history.state.live_jobs["p"]
    assert job.spec is not None
    history.then(
        events.ThroughputMeasured(
            profile_key=job.spec.measured_key,
            num_gpus=len(job.gpus),
            iterations_per_s=rate,
            dataset_size=1000,
            job_id="p",
            generation=job.generation,
            source="profile",
            at_s=at_s,
        )
    )
    return len(job.gpus)


def test_what_nobody_knows_is_measured_and_no_job_is_left() -> None:
    history = pool(4)
    (asked,) = history.decided(ADMISSION, ask(min_gpus=2))
    assert isinstance(asked, events.ProfileRequested)
    assert asked.only_measured
    assert [pre_run(history, rate, NOW_S + rate) for rate in (2.0, 3.5)] == [2, 4]
    history.decided(ALLOCATOR, now_s=NOW_S + 5.0)
    (measured,) = history.decided(ADMISSION, now_s=NOW_S + 5.0)
    assert measured == events.JobMeasured(job_id="p", iterations_per_s={2: 2.0, 4: 3.5}, at_s=NOW_S + 5.0)
    job = history.state.ended_jobs["p"]
    assert (job.phase, job.gpus) == (Phase.MEASURED, ())
    assert not history.state.live_jobs
    assert not history.state.usage
    history.decided(ALLOCATOR, now_s=NOW_S + 6.0)
    assert history.state.num_gpus_by_job == {}
    assert history.decided(ADMISSION, ask(min_gpus=2)) == ()
    assert told_before(history.state, ask(min_gpus=2)) == measured
    view = profile_view(history.state, best_effort(model_name="new", max_gpus=2))
    assert view is not None
    assert [(p.num_gpus, p.speedup, p.efficiency, p.is_in_range) for p in view.points] == [
        (2, 1.0, 1.0, True),
        (4, 1.75, 0.875, False),
    ]
    assert (view.dataset_size, view.complete) == (1000, False)


def test_what_is_known_is_told_at_once() -> None:
    history = pool(8)
    (measured,) = history.decided(ADMISSION, ask(model_name="linear", max_gpus=2))
    assert measured == events.JobMeasured(job_id="p", iterations_per_s={1: 1.0, 2: 2.0}, at_s=NOW_S)
    assert not history.state.live_jobs
    assert not history.state.ended_jobs


def test_it_waits_its_turn_and_may_be_cancelled() -> None:
    history = pool(4)
    history.decided(ADMISSION, ask(), ask("q", model_name="other"))
    assert pre_run(history, 1.0, NOW_S + 1.0) == 1
    assert history.state.live_jobs["q"].gpus == ()
    history.decided(ADMISSION, CancelJob(job_id="q", tenant="lab"))
    assert history.state.ended_jobs["q"].phase is Phase.CANCELLED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"min_gpus": 16}, "unrunnable"), ({"min_gpus": 3, "max_gpus": 3}, "invalid")],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], reason: str) -> None:
    (refused,) = pool(4).decided(ADMISSION, ask(**changes))
    assert isinstance(refused, events.JobRejected)
    assert refused.reason == reason


def test_a_name_is_that_of_a_job_or_of_a_measurement() -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("p"))
    (refused,) = history.decided(ADMISSION, ask(model_name="linear"))
    assert isinstance(refused, events.JobRejected)
    assert refused.reason == "duplicate"
    assert profile_view(history.state, best_effort(model_name="nobody")) is None
    known = profile_view(history.state, best_effort())
    assert known is not None
    assert {point.num_gpus: point.iterations_per_s for point in known.points} == LINEAR
