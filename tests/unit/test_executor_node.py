"""Given how a node comes, goes and loses sight of the others, this is told of it, and becomes of its workers."""

from services.executor.notes import (
    ContactLost,
    ContactRestored,
    Depart,
    KillWorkers,
    LeaveRequested,
    StartWorker,
    StopWorkers,
    WorkerId,
)
from services.executor.observing import report
from shared.messages import events
from shared.messages.from_worker import Alive, Checkpointed, Progressed
from tests.executor_node import KILL_A1, STOP_A1, ExecutorNode, kinds, lost
from tests.histories import NOW_S


def test_a_node_counted_as_lost_ends_all_and_then_joins_anew() -> None:
    node = ExecutorNode().training(1)
    first = node.state.incarnation
    node.ledger(lost(node))
    assert (node.acted, node.told) == ([KILL_A1], [])
    node.ends(signal=9)
    assert kinds(node.told) == [events.NodeJoined]
    assert node.state.incarnation != first
    node.place("node-0:0")
    assert [a.worker for a in node.acted[1:]] == [WorkerId("a", 2, 0)]


def test_whoever_is_replaced_ends_all_and_departs() -> None:
    node = ExecutorNode().training(1)
    node.ledger(events.NodeJoined(node_id="node-0", incarnation="y", num_gpus=4, device="cpu", at_s=NOW_S))
    assert node.acted == [KILL_A1]
    node.ends(signal=9)
    assert node.acted[1] == Depart(replaced=True)
    assert node.told == []


def test_a_leaving_node_stops_at_a_boundary_and_goes() -> None:
    """Its checkpoints speak for it: the next generation begins at the newest, and then tells which that was."""
    node = ExecutorNode().training(1).note(LeaveRequested())
    assert node.acted == [STOP_A1]
    node.says(Checkpointed(iteration=12)).ends()
    assert kinds(node.told) == [events.NodeLost]
    assert node.told[0].reason == "left"
    assert node.acted[1] == Depart(replaced=False)
    assert node.state.pool.live_jobs["a"].broken


def test_a_worker_that_is_killed_on_leaving_is_no_crash() -> None:
    node = ExecutorNode().training(1).note(LeaveRequested()).at(NOW_S + 10.0).ends(signal=9)
    assert kinds(node.acted) == [StopWorkers, KillWorkers, Depart]
    assert kinds(node.told) == [events.NodeLost]


def test_after_a_restart_a_broken_generation_is_not_started_but_reported_gone() -> None:
    before = ExecutorNode().training(1)
    node = ExecutorNode(before.state.pool, run_id="second").settle()
    assert kinds(node.told) == [events.NodeJoined]
    assert node.acted == []
    node.forget().place("node-0:0", "node-0:1")
    assert [fact.generation for fact in node.told] == [1]
    assert [a.worker.generation for a in node.acted] == [2, 2]


def test_without_contact_nothing_is_started_and_the_end_is_explained() -> None:
    node = ExecutorNode().training(1).note(ContactLost(silence_s=1.6)).ends(signal=9)
    assert [fact.explanation for fact in node.told] == [
        "rank 0 on node-0 ended because NATS was out of reach for 1.6 s"
    ]
    node.place("node-0:0")
    assert StartWorker not in kinds(node.acted)
    node.note(ContactRestored())
    assert [a.worker for a in node.acted] == [WorkerId("a", 2, 0)]


def test_the_heartbeat_says_how_far_each_training_worker_is() -> None:
    node = ExecutorNode().training(2).says(Checkpointed(iteration=5))
    node.says(Progressed(iteration=9, iterations_per_s=3.0, metrics={"loss": 1.0}))
    node.says(Alive(iteration=8, seconds_since_progress=4.0), rank=1)
    heartbeat = report(node.state, NOW_S + 1.0)
    assert heartbeat.workers == (
        events.WorkerReport(
            job_id="a",
            generation=1,
            rank=0,
            iteration=9,
            iterations_per_s=3.0,
            checkpoint_iteration=5,
            seconds_since_progress=1.0,
            metrics={"loss": 1.0},
        ),
        events.WorkerReport(
            job_id="a",
            generation=1,
            rank=1,
            iteration=8,
            iterations_per_s=None,
            seconds_since_progress=5.0,
        ),
    )
