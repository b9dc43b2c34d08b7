"""The executor's policy: when this node must store what a job has produced, and that it says so once."""

from elasticflow.services.executor.decisions.local_events_and_actions import (
    ArtifactsUploaded,
    SendToWorker,
    StoreArtifacts,
    WorkerId,
)
from elasticflow.shared.messages import events
from elasticflow.shared.messages.worker_protocol import from_worker
from elasticflow.shared.messages.worker_protocol.to_worker import WriteCheckpoint
from elasticflow.shared.state.job import JobArtifacts
from testbed.histories import NOW_S
from tests.support.executor_node import ExecutorNode

MODEL = events.StoredFile(path="i00000000000007.pt", num_bytes=10, digest="a" * 64)
FINISHED = from_worker.Finished(iteration=7, condition="metric")


def training_node() -> ExecutorNode:
    return ExecutorNode(stores_artifacts=True).training()


def orders(node: ExecutorNode) -> list[StoreArtifacts]:
    return [action for action in node.actions if isinstance(action, StoreArtifacts)]


def artifacts(node: ExecutorNode) -> JobArtifacts:
    job = node.state.pool.job("a")
    assert job is not None
    return job.artifacts


def uploads(node: ExecutorNode, due: int) -> ExecutorNode:
    return node.note(ArtifactsUploaded(job_id="a", due=due, iteration=7, model=MODEL, uri="s3://bucket/store"))


def test_a_finished_job_is_stored_once_its_last_worker_has_ended() -> None:
    node = training_node().reports(FINISHED)
    assert artifacts(node).node_id == "node-0"
    assert orders(node) == []  # a script may still write files
    node.ends()
    (order,) = orders(node)
    assert (order.job_id, order.tenant, order.generation, order.max_bytes) == ("a", "lab", 1, 1 << 30)
    uploads(node, order.due)
    (stored,) = node.emitted_of(events.ArtifactsStored)
    assert (stored.due, stored.node_id, stored.model) == (order.due, "node-0", MODEL)
    assert stored.uri == "s3://bucket/store"
    assert artifacts(node) == JobArtifacts(sequence=node.state.pool.sequence, model_iteration=7, num_bytes=10)
    assert node.settle().emitted_of(events.ArtifactsStored) == [stored]
    assert node.unchanged_by(stored)
    assert "a" not in node.state.job_ids
    assert not node.state.uploads


def test_an_executor_that_was_killed_meanwhile_begins_again() -> None:
    node = training_node().reports(FINISHED).ends()
    again = ExecutorNode(node.state.pool, run_id="again", stores_artifacts=True)
    (order,) = orders(again.settle())
    assert order == orders(node)[0]


def test_a_node_that_stores_nothing_is_asked_for_nothing() -> None:
    node = ExecutorNode().training().reports(FINISHED).ends()
    assert orders(node) == []
    assert "a" not in node.state.job_ids


def test_a_cancelled_job_is_stored_and_a_profiled_one_is_not() -> None:
    node = training_node().ledger(events.JobCancelled(job_id="a", reason="", at_s=NOW_S)).ends()
    assert len(orders(node)) == 1
    profiled = ExecutorNode(stores_artifacts=True).settle().profile().place("node-0:0")
    profiled.ledger(events.JobCancelled(job_id="a", reason="", at_s=NOW_S)).ends()
    assert orders(profiled) == []


def test_a_running_job_is_stored_after_the_requested_checkpoint() -> None:
    node = training_node().ledger(events.CheckpointRequested(job_id="a", store=True, at_s=NOW_S))
    request = node.state.pool.live_jobs["a"].checkpoint_request
    message = WriteCheckpoint(request=request, with_model=True)
    assert node.actions == [SendToWorker(worker=WorkerId("a", 1, 0), message=message)]
    node.reports(from_worker.CheckpointWritten(iteration=7, request=request, num_bytes=9, file="f"))
    (order,) = orders(node)
    node.reports(FINISHED)  # before the upload has ended: another one is due
    uploads(node, order.due)
    assert node.emitted_of(events.ArtifactsStored) == []
    node.ends()
    first, second = orders(node)
    assert second.due > first.due
    uploads(node, second.due)
    (stored,) = node.emitted_of(events.ArtifactsStored)
    assert stored.due == second.due


def test_a_later_request_for_the_disk_alone_takes_nothing_away() -> None:
    node = training_node().ledger(events.CheckpointRequested(job_id="a", store=True, at_s=NOW_S))
    node.ledger(events.CheckpointRequested(job_id="a", at_s=NOW_S))
    request = node.state.pool.live_jobs["a"].checkpoint_request
    node.reports(from_worker.CheckpointWritten(iteration=7, request=request, num_bytes=9, file="f"))
    assert len(orders(node)) == 1


def test_a_failed_checkpoint_and_one_for_the_disk_alone_store_nothing() -> None:
    node = training_node().ledger(events.CheckpointRequested(job_id="a", store=True, at_s=NOW_S))
    request = node.state.pool.live_jobs["a"].checkpoint_request
    node.reports(from_worker.CheckpointFailed(request=request, reason="full"))
    node.ledger(events.CheckpointRequested(job_id="a", at_s=NOW_S))
    request = node.state.pool.live_jobs["a"].checkpoint_request
    node.reports(from_worker.CheckpointWritten(iteration=7, request=request, num_bytes=9, file="f"))
    assert orders(node) == []


def test_only_the_node_that_must_store_them_may_say_so() -> None:
    node = training_node().reports(FINISHED).ends()
    due = artifacts(node).due
    for forged in (
        events.ArtifactsStored(job_id="a", due=due, node_id="node-1", at_s=NOW_S),
        events.ArtifactsStored(job_id="a", due=due - 1, node_id="node-0", at_s=NOW_S),
        events.ArtifactsStored(job_id="b", due=due, node_id="node-0", at_s=NOW_S),
    ):
        assert node.unchanged_by(forged)
