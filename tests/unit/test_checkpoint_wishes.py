"""An operator asks for a checkpoint: of workers that train, or it is told what the disk has."""

import pytest

from elasticflow.story import story
from services.admission.policy import POLICY as ADMISSION
from services.executor.notes import AskForCheckpoint, WorkerId
from shared.messages import events
from shared.messages.commands import CheckpointJob
from shared.messages.from_worker import Checkpointed, NotCheckpointed
from tests.executor_node import ExecutorNode
from tests.facts import admitted, finished, job, placed, profile_requested, progressed, running, stopped
from tests.histories import NOW_S, History, pool

WISH = CheckpointJob(job_id="a", tenant="lab")
RANK_0 = WorkerId("a", 1, 0)


def asked(history: History, wish: CheckpointJob = WISH) -> events.AdmissionEvent:
    answer, *_ = history.decided(ADMISSION, wish)
    return answer


# --- admission and fold ---------------------------------------------------------------------------------


def test_workers_that_train_are_asked_until_one_has_answered() -> None:
    history = running()
    assert isinstance(asked(history), events.CheckpointRequested)
    request = history.state.sequence
    assert job(history).checkpoint_request == request
    written = events.CheckpointWritten(
        job_id="a", request=request, iteration=7, num_bytes=10, file="f", at_s=NOW_S
    )
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


def test_of_a_job_without_workers_the_newest_is_told() -> None:
    waiting = pool(4).then(admitted())
    assert asked(waiting) == events.CheckpointKept(job_id="a", iteration=0, at_s=NOW_S)
    suspended = running().then(progressed(1, 10), placed(2), stopped(1, "node-0", 12))
    assert asked(suspended) == events.CheckpointKept(job_id="a", iteration=12, at_s=NOW_S)
    ended = running().then(finished(1))
    assert asked(ended) == events.CheckpointKept(job_id="a", iteration=100, at_s=NOW_S)


@pytest.mark.parametrize(
    ("history", "wish", "words"),
    [
        (running(), CheckpointJob(job_id="b", tenant="lab"), "no such job"),
        (running(), CheckpointJob(job_id="a", tenant="other"), "no such job"),
        (pool(4).then(profile_requested()), WISH, "not admitted"),
    ],
)
def test_what_there_is_not_cannot_be_kept(history: History, wish: CheckpointJob, words: str) -> None:
    refused = asked(history, wish)
    assert isinstance(refused, events.CheckpointRefused)
    assert words in refused.explanation


def test_the_story_tells_of_it() -> None:
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
    assert story(entries, "a")[-1].text == "checkpoint of iteration 7 written, 1.23 MB: /data/x.ckpt"


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
    return [fact for fact in node.told if isinstance(fact, kinds)]


def test_rank_0_is_asked_once_and_its_answer_told_once() -> None:
    node = ExecutorNode().training(2)
    request = asking(node)
    ask = AskForCheckpoint(worker=RANK_0, request=request)
    assert [action for action in node.acted if isinstance(action, AskForCheckpoint)] == [ask]
    node.says(Checkpointed(iteration=4))  # one that was due anyway
    assert answers(node) == []
    node.says(Checkpointed(iteration=5, request=request, num_bytes=10, file="/data/f"))
    (written,) = answers(node)
    assert isinstance(written, events.CheckpointWritten)
    assert (written.request, written.iteration, written.file) == (request, 5, "/data/f")
    assert node.state.pool.live_jobs["a"].checkpoint_iteration == 5
    second = asking(node)
    node.says(NotCheckpointed(request=second, reason="full"))
    assert isinstance(answers(node)[-1], events.CheckpointFailed)
    assert len(answers(node)) == 2


def test_a_worker_that_stops_answers_with_its_last_one() -> None:
    node = ExecutorNode().training(1)
    request = asking(node)
    node.says(Checkpointed(iteration=8, request=request, num_bytes=10, file="/data/f")).ends()
    (written,) = answers(node)
    assert isinstance(written, events.CheckpointWritten)
    assert written.iteration == 8
