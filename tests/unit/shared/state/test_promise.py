"""What has become of a promise, and when that was final."""

from dataclasses import replace

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.promise import Promise, promise_of, settled_at_s
from testbed.histories import NOW_S, best_effort, spec

DEADLINE_S = NOW_S + 100.0
PROMISED = Job(
    job_id="a", tenant="lab", spec=spec(), phase=Phase.ADMITTED, decided_at_s=NOW_S, decided_sequence=1,
    admitted_at_s=NOW_S, deadline_s=DEADLINE_S,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "promise", "settled_s"),
    [
        ({}, Promise.PROMISED, None),
        ({"at_risk": True}, Promise.AT_RISK, None),
        ({"phase": Phase.FINISHED, "ended_at_s": DEADLINE_S}, Promise.KEPT, DEADLINE_S),
        ({"phase": Phase.FINISHED, "ended_at_s": DEADLINE_S + 0.1}, Promise.BROKEN, DEADLINE_S),
        ({"phase": Phase.FAILED, "ended_at_s": NOW_S + 5.0}, Promise.FAILED, NOW_S + 5.0),
        ({"phase": Phase.FAILED, "ended_at_s": DEADLINE_S + 5.0}, Promise.BROKEN, DEADLINE_S),
        ({"phase": Phase.CANCELLED, "ended_at_s": NOW_S + 5.0}, Promise.CANCELLED, NOW_S + 5.0),
        ({"phase": Phase.CANCELLED, "ended_at_s": DEADLINE_S + 5.0}, Promise.BROKEN, DEADLINE_S),
        ({"phase": Phase.FAILED, "ended_at_s": NOW_S + 5.0, "admitted_at_s": None}, Promise.NONE, None),
        ({"phase": Phase.REJECTED, "admitted_at_s": None}, Promise.NONE, None),
        ({"phase": Phase.PROFILING, "admitted_at_s": None}, Promise.NONE, None),
        ({"spec": spec(job_class=JobClass.SOFT)}, Promise.NONE, None),
        ({"spec": best_effort(), "deadline_s": None}, Promise.NONE, None),
    ],
)
def test_a_promise_is_in_one_state(changes: dict[str, object], promise: Promise, settled_s: float | None) -> None:
    job = replace(PROMISED, **changes)
    assert (promise_of(job, NOW_S + 50.0), settled_at_s(job, NOW_S + 50.0)) == (promise, settled_s)


def test_a_live_promise_is_broken_once_its_deadline_has_passed() -> None:
    assert promise_of(PROMISED, DEADLINE_S) is Promise.PROMISED
    assert promise_of(replace(PROMISED, at_risk=True), DEADLINE_S + 0.1) is Promise.BROKEN


def test_an_end_is_final_however_much_later_one_looks() -> None:
    failed = replace(PROMISED, phase=Phase.FAILED, ended_at_s=NOW_S + 5.0)
    assert promise_of(failed, DEADLINE_S + 1_000.0) is Promise.FAILED
