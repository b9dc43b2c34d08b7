"""A requested checkpoint: workers that train write one; otherwise the reply names the newest one on disk."""

import pytest

from elasticflow.history.job_history import job_history
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.executor.decisions.local_events_and_actions import SendToWorker, WorkerId
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import RequestCheckpoint
from elasticflow.shared.messages.worker_protocol.from_worker import CheckpointFailed, CheckpointWritten
from elasticflow.shared.messages.worker_protocol.to_worker import WriteCheckpoint
from testbed.histories import NOW_S, History, pool
from tests.support.executor_node import ExecutorNode
from tests.support.worker_events import (
    admitted,
    finished,
    job,
    placed,
    profile_requested,
    progressed,
    running,
    stopped,
)

COMMAND = RequestCheckpoint(job_id="a", tenant="lab")
RANK_0 = WorkerId("a", 1, 0)


def asked(history: History, command: RequestCheckpoint = COMMAND) -> events.AdmissionEvent:
    answer, *_ = history.decided(ADMISSION, command)
    return answer


# --- admission and fold ---------------------------------------------------------------------------------


def test_a_checkpoint_is_requested_of_training_workers_until_one_replies() -> None:
    history = running()
    assert isinstance(asked(history), events.CheckpointRequested)
    request = history.state.sequence
    assert job(history).checkpoint_request == request
    written = events.CheckpointWritten(job_id="a", request=request, iteration=7, num_bytes=10, file="f", at_s=NOW_S)
    asked(history)  # again: another request
    history.then(written)
    assert job(history).checkpoint_request == request + 1
    history.then(events.CheckpointFailed(job_id="a", request=request + 1, explanation="full", at_s=NOW_S))
    assert (job(history).checkpoint_request, job(history).checkpoint_iteration) == (0, 0)
    asked(history)
    history.then(
        events.CheckpointWritten(
            job_id="a", request=history.state.sequence, iteration=9, num_bytes=10, file="f", at_s=NOW_S
        )
    )
    assert (job(history).checkpoint_request, job(history).checkpoint_iteration) == (0, 9)


def test_without_workers_the_reply_names_the_newest_checkpoint() -> None:
    waiting = pool(4).then(admitted())
    assert asked(waiting) == events.CheckpointUpToDate(job_id="a", iteration=0, at_s=NOW_S)
    suspended = running().then(progressed(1, 10), placed(2), stopped(1, "node-0", 12))
    assert asked(suspended) == events.CheckpointUpToDate(job_id="a", iteration=12, at_s=NOW_S)
    ended = running().then(finished(1))
    assert asked(ended) == events.CheckpointUpToDate(job_id="a", iteration=100, at_s=NOW_S)


@pytest.mark.parametrize(
    ("history", "command", "words"),
    [
        (running(), RequestCheckpoint(job_id="b", tenant="lab"), "no such job"),
        (running(), RequestCheckpoint(job_id="a", tenant="other"), "no such job"),
        (pool(4).then(profile_requested()), COMMAND, "not admitted"),
    ],
)
def test_a_job_without_state_has_nothing_to_checkpoint(
    history: History, command: RequestCheckpoint, words: str
) -> None:
    refused = asked(history, command)
    assert isinstance(refused, events.CheckpointRejected)
    assert words in refused.explanation


def test_the_job_history_shows_the_checkpoint() -> None:
    entries = [
        (1, NOW_S, events.PlanDecided(service="admission", based_on=0, now_s=NOW_S, events=(admitted(),))),
        (
            2,
            NOW_S,
            events.CheckpointWritten(
                job_id="a", request=1, iteration=7, num_bytes=1_234_567, file="/data/x.ckpt", at_s=NOW_S
            ),
        ),
    ]
    assert job_history(entries, "a")[-1].text == "checkpoint of iteration 7 written, 1.23 MB: /data/x.ckpt"


# --- executor -------------------------------------------------------------------------------------------


def asking(node: ExecutorNode) -> int:
    """The request, now in the ledger."""
    decided = events.PlanDecided(
        service="admission",
        based_on=0,
        now_s=NOW_S,
        events=(events.CheckpointRequested(job_id="a", at_s=NOW_S),),
    )
    node.ledger(decided)
    return node.state.pool.live_jobs["a"].checkpoint_request


def answers(node: ExecutorNode) -> list[object]:
    kinds = events.CheckpointWritten | events.CheckpointFailed
    return [event for event in node.emitted if isinstance(event, kinds)]


def test_rank_0_gets_one_request_and_its_reply_is_reported_once() -> None:
    node = ExecutorNode().training(2)
    request = asking(node)
    assert node.actions == [SendToWorker(worker=RANK_0, message=WriteCheckpoint(request=request))]
    node.reports(CheckpointWritten(iteration=4))  # a regular one
    assert answers(node) == []
    node.reports(CheckpointWritten(iteration=5, request=request, num_bytes=10, file="/data/f"))
    (written,) = answers(node)
    assert isinstance(written, events.CheckpointWritten)
    assert (written.request, written.iteration, written.file) == (request, 5, "/data/f")
    assert node.state.pool.live_jobs["a"].checkpoint_iteration == 5
    second = asking(node)
    node.reports(CheckpointFailed(request=second, reason="full"))
    assert isinstance(answers(node)[-1], events.CheckpointFailed)
    assert len(answers(node)) == 2


def test_a_worker_that_stops_replies_with_its_last_checkpoint() -> None:
    node = ExecutorNode().training(1)
    request = asking(node)
    node.reports(CheckpointWritten(iteration=8, request=request, num_bytes=10, file="/data/f")).ends()
    (written,) = answers(node)
    assert isinstance(written, events.CheckpointWritten)
    assert written.iteration == 8
