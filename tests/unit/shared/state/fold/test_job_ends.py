"""Given this history of jobs that end, then this state, and this reply to a repeated command."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.state.fold.jobs import FORGET_AT_ONCE, MAX_ENDED_JOBS, MAX_EXPLANATION, MAX_TRACEBACK
from elasticflow.shared.state.idempotent_replies import outcome
from elasticflow.shared.state.job import Phase
from testbed.histories import NOW_S, pool, spec
from tests.support.worker_events import (
    admitted,
    crashed,
    finished,
    job,
    joined,
    lost,
    placed,
    profile_requested,
    progressed,
    rejected,
    running,
    stopped,
)

# --- ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "phase"),
    [
        (finished(1), Phase.FINISHED),
        (events.JobFailed(job_id="a", generation=1, error="NaN", traceback="...", at_s=NOW_S), Phase.FAILED),
        (events.JobCancelled(job_id="a", reason="enough", at_s=NOW_S), Phase.CANCELLED),
    ],
)
def test_an_end_frees_the_gpus_and_is_final(end: Any, phase: Phase) -> None:
    history = running().then(end)
    a = job(history)
    assert (a.phase, a.gpus, a.num_gpus, len(a.stopping)) == (phase, (), 0, 2)
    assert "a" not in history.state.live_jobs
    history.then(finished(1), admitted(), placed(2, "node-0:0"), profile_requested(), crashed(1))
    assert job(history) == a


def test_a_generation_that_is_being_replaced_may_still_finish_the_job() -> None:
    history = running().then(placed(2, "node-1:1"), finished(1))
    a = job(history)
    assert (a.phase, a.iteration) == (Phase.FINISHED, 100)
    assert {(s.generation, s.node_id) for s in a.stopping} == {(1, "node-0"), (1, "node-1"), (2, "node-1")}


def test_a_generation_that_is_gone_finishes_nothing() -> None:
    history = running().then(placed(2, "node-1:1"), stopped(1, "node-0"), stopped(1, "node-1"), finished(1))
    assert job(history).live


def test_a_stall_that_a_paused_monitor_reports_late_does_not_fail_a_job_that_moved_on() -> None:
    """Also while workers of the stalled generation still stop."""
    stalled = running().then(progressed(1, 20))
    failed = events.JobFailed(job_id="a", generation=1, error="no", progressed_at_s=NOW_S + 5.0, at_s=NOW_S + 200.0)
    assert job(running().then(progressed(1, 20), failed)).phase is Phase.FAILED
    for since in (progressed(1, 21, at_s=6.0), placed(2, "node-1:1")):
        assert job(running().then(progressed(1, 20), since, failed)).live
    assert job(stalled.then(crashed(1), placed(2, "node-0:1", "node-1:1"), failed)).live


def test_a_lost_node_does_not_fail_a_job() -> None:
    """Its executor paused, and found overdue after the pause what it had no time for."""
    failed = events.JobFailed(
        job_id="a", generation=1, error="overdue", node_id="node-0", incarnation="first-0", at_s=NOW_S + 200.0
    )
    assert job(running().then(failed)).phase is Phase.FAILED
    for since in ((lost(),), (joined("second"),), (lost(), joined("second"))):
        assert job(running().then(*since, failed)).live


def test_a_profiling_run_does_not_finish_its_job() -> None:
    assert job(pool(4).then(profile_requested(), placed(1, "node-0:0"), finished(1))).phase is Phase.PROFILING


def test_workers_of_a_rejected_job_do_not_end_a_later_job_of_the_same_id() -> None:
    """Admission rejects a job during its profiling run; the user submits another one under its id."""
    history = pool(4).then(profile_requested(), placed(1, "node-0:0"), rejected())
    history.then(admitted(spec=spec(max_iterations=7)))
    assert [s.generation for s in job(history).stopping] == [1]
    failed = events.JobFailed(job_id="a", generation=1, error="of the rejected job", at_s=NOW_S)
    history.then(failed, finished(1), stopped(1, "node-0", iteration=90))
    a = job(history)
    assert (a.phase, a.checkpoint_iteration, a.stopping) == (Phase.ADMITTED, 0, ())
    history.then(placed(2, "node-0:0"), replace(failed, generation=2))
    assert job(history).phase is Phase.FAILED


def test_an_end_keeps_the_last_words_of_a_long_traceback() -> None:
    failed = events.JobFailed(
        job_id="a", generation=1, error="e" * 20_000, traceback="start" + "x" * 20_000 + "the end", at_s=NOW_S
    )
    a = job(running().then(failed))
    assert (len(a.traceback), len(a.explanation)) == (MAX_TRACEBACK, MAX_EXPLANATION)
    assert a.traceback.endswith("xthe end")


def test_of_ended_jobs_the_newest_are_kept_and_those_whose_workers_still_run() -> None:
    history = pool(4).then(admitted("waits"), placed(1, "node-0:0", job_id="waits"))
    history.then(events.JobCancelled(job_id="waits", reason="", at_s=NOW_S))
    num_jobs = MAX_ENDED_JOBS + FORGET_AT_ONCE + 1
    for number in range(num_jobs):
        name = f"job-{number:05}"
        history.then(admitted(name), events.JobCancelled(job_id=name, reason="", at_s=NOW_S + number))
    state = history.state
    assert "waits" in state.ended_jobs
    assert f"job-{num_jobs - 1:05}" in state.ended_jobs
    assert state.job("job-00000") is None
    assert MAX_ENDED_JOBS <= len(state.ended_jobs) <= MAX_ENDED_JOBS + FORGET_AT_ONCE
    assert state.num_forgotten + len(state.ended_jobs) == num_jobs + 1


# --- repeated -----------------------------------------------------------------------------------------


def test_a_repeated_command_gets_the_failure_again() -> None:
    """Admitted is no answer for a job that will not train any more."""
    failed = events.JobFailed(job_id="a", generation=0, error="no", traceback="line 1", at_s=NOW_S + 5.0)
    cancelled = events.JobCancelled(job_id="a", reason="why not", at_s=NOW_S + 5.0)
    for before in (profile_requested(), admitted()):
        for end in (failed, cancelled):
            state = pool(4).then(before, end).state
            assert outcome(state, state.ended_jobs["a"]) == end


def test_a_repeated_command_gets_the_promise_again() -> None:
    state = pool(4).then(admitted()).state
    assert isinstance(outcome(state, state.live_jobs["a"]), events.JobAdmitted)
