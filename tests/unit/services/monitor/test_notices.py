"""What the webhook tells of jobs: ends, risks and broken promises, each once for its time."""

import pytest

from elasticflow.services.monitor.webhook import Notice, notices
from elasticflow.shared.messages import events
from testbed.histories import NOW_S, History, pool, spec
from tests.support.worker_events import placed


def admitted(history: History, job_id: str = "j1", **changes: object) -> History:
    job = spec(**changes)
    return history.then(
        events.JobAdmitted(
            job_id=job_id,
            tenant="lab",
            spec=job,
            deadline_s=job.deadline_s,
            minimum_satisfactory_share=(NOW_S, NOW_S + 60.0, 2) if job.deadline_s else (),
            gpu_seconds=120.0,
            at_s=NOW_S,
        )
    )


def told(history: History, *, after_s: float = NOW_S - 1.0, now_s: float = NOW_S + 50.0) -> list[tuple[str, str]]:
    return [(notice.what, notice.text) for notice in notices(history.state, after_s=after_s, now_s=now_s)]


def test_a_live_job_in_time_is_not_told() -> None:
    assert told(admitted(pool(4))) == []


def test_an_end_is_told_with_its_margin() -> None:
    history = admitted(pool(4)).finished("j1", at_s=NOW_S + 40.0)
    (notice,) = notices(history.state, after_s=NOW_S, now_s=NOW_S + 50.0)
    assert notice == Notice(
        id="j1/finished/1800000040.000",
        job_id="j1",
        tenant="lab",
        what="finished",
        text="j1 finished, 60 s before its deadline",
        deadline_s=NOW_S + 100.0,
        margin_s=60.0,
        at_s=NOW_S + 40.0,
    )


def test_only_what_happened_after_a_time_is_told() -> None:
    history = admitted(pool(4)).finished("j1", at_s=NOW_S + 40.0)
    assert told(history, after_s=NOW_S + 40.0) == []
    assert told(history, now_s=NOW_S + 39.0) == []


def test_a_risk_is_told() -> None:
    history = admitted(pool(4)).then(
        events.JobAtRisk(
            job_id="j1",
            generation=0,
            projected_finish_s=NOW_S + 130.0,
            deadline_s=NOW_S + 100.0,
            at_s=NOW_S + 20.0,
        )
    )
    assert told(history) == [("at risk", "j1 is at risk of missing its deadline")]


@pytest.mark.parametrize(
    ("iterations_per_s", "would"),
    [
        (2.0, "30 s before its deadline, but no plan with the pool's margin keeps it"),
        (1.0, "20 s after its deadline"),
    ],
)
def test_a_risk_beside_a_positive_margin_says_why(iterations_per_s: float, would: str) -> None:
    history = admitted(pool(4)).then(placed(1, "node-0:0", job_id="j1")).started("j1")
    progressed = events.JobProgressed(
        job_id="j1", generation=1, iteration=0, iterations_per_s=iterations_per_s, at_s=NOW_S + 20.0
    )
    risk = events.JobAtRisk(
        job_id="j1", generation=1, projected_finish_s=None, deadline_s=NOW_S + 100.0, at_s=NOW_S + 20.0
    )
    text = "j1 is at risk of missing its deadline: at its speed now it would finish "
    assert told(history.then(progressed, risk), now_s=NOW_S + 21.0) == [("at risk", text + would)]


def test_a_promise_is_broken_when_its_deadline_passes() -> None:
    history = admitted(pool(4))
    broken = ("promise broken", "j1 had not finished at its deadline")
    assert told(history, now_s=NOW_S + 100.5) == [broken]
    history.finished("j1", at_s=NOW_S + 120.0)
    late = ("finished", "j1 finished, 20 s after its deadline")
    assert told(history, now_s=NOW_S + 130.0) == [broken, late]


def test_a_job_without_a_promise_breaks_none() -> None:
    history = admitted(pool(4), deadline_s=None, job_class="best_effort")
    assert told(history, now_s=NOW_S + 1_000.0) == []


def test_a_failure_and_a_cancellation_are_told_with_their_reasons() -> None:
    history = admitted(admitted(pool(4)), "j2")
    history.then(
        events.JobFailed(job_id="j1", generation=0, error="out of memory", at_s=NOW_S + 10.0),
        events.JobCancelled(job_id="j2", reason="wrong data", at_s=NOW_S + 11.0),
    )
    assert told(history) == [("failed", "j1 failed: out of memory"), ("cancelled", "j2 cancelled: wrong data")]
