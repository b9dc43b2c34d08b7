"""Micro-batches that exceed the memory are halved: given this history, then this size, and these events."""

from elasticflow.shared.messages import events
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Interrupted
from elasticflow.shared.state.job import PreviousGeneration
from testbed.histories import NOW_S, History, gpus, pool
from tests.support.executor_node import ExecutorNode, kills, kinds, stops
from tests.support.worker_events import admitted, crashed, job, placed, profile_requested, progressed


def exceeded(micro_batch_size: int, *, generation: int = 1, rank: int = 0) -> events.MemoryExceeded:
    return events.MemoryExceeded(
        job_id="a",
        generation=generation,
        node_id="node-0",
        rank=rank,
        micro_batch_size=micro_batch_size,
        at_s=NOW_S,
    )


def training() -> History:
    history = pool(4, 4, stop_free=True).then(admitted(), placed(1, "node-0:0", "node-1:0"))
    return history.started("a", at_s=NOW_S + 2.0).then(progressed(1, 20, checkpoint=10))


# --- the fold -------------------------------------------------------------------------------------------


def test_the_generation_is_broken_and_its_workers_wait_with_all_that_was_done() -> None:
    a = job(training().then(exceeded(9)))
    assert (a.broken, a.restarts, a.iteration, a.micro_batch_size) == (True, 0, 20, 5)
    assert a.previous_generation == PreviousGeneration(generation=1, gpus=gpus("node-0:0", "node-1:0"), waiting=True)
    again = training().then(exceeded(9), placed(2, "node-0:0", "node-1:0"))
    assert job(again).training_generation is None, "who waits does not train"
    assert (job(again).is_switching, job(again).micro_batch_size) == (True, 5)


def test_equal_reports_of_several_peers_halve_it_once() -> None:
    history = training().then(exceeded(9))
    before = job(history)
    assert job(history.then(exceeded(9, rank=1), exceeded(10))) == before
    history.then(placed(2, "node-0:0", "node-1:0"), exceeded(9))
    assert (job(history).micro_batch_size, job(history).broken) == (5, False)
    history.started("a", iteration=20).then(exceeded(5, generation=2))
    assert (job(history).micro_batch_size, job(history).broken) == (3, True)


def test_it_counts_although_a_peer_was_missed_first() -> None:
    a = job(training().then(crashed(1, rank=1), exceeded(8)))
    assert (a.micro_batch_size, a.restarts) == (4, 1)


def test_the_next_job_of_the_profile_starts_with_it_and_a_started_job_keeps_its_own() -> None:
    history = training().then(admitted("b"), placed(1, "node-0:1", job_id="b"), profile_requested("d"))
    history.then(placed(1, "node-0:2", job_id="d"), exceeded(8), admitted("c"))
    for job_id, gpu in (("b", "node-0:1"), ("c", "node-0:3"), ("d", "node-0:2")):
        history.then(placed(2, gpu, job_id=job_id))
    history.then(exceeded(4), placed(3, "node-0:2", job_id="d"), admitted("d"))
    assert job(history, "d").micro_batch_size is None
    history.then(placed(4, "node-0:2", job_id="d"))
    assert [job(history, name).micro_batch_size for name in "abcd"] == [2, 0, 4, 2]


def test_an_older_generation_is_ignored() -> None:
    history = training().then(placed(2, "node-1:0")).started("a", iteration=30)
    before = job(history)
    assert job(history.then(exceeded(8))) == before


# --- the executor ---------------------------------------------------------------------------------------


def test_it_is_reported_once_and_the_worker_continues_with_smaller_micro_batches() -> None:
    node = ExecutorNode().stop_free().training(1)
    node.reports(Interrupted(iteration=7, micro_batch_size=8))
    assert node.emitted == [exceeded(8)]
    node.forget().place("node-0:0")
    (switch,) = node.actions
    order = switch.message
    assert (order.rendezvous_rank, order.plan.rendezvous_size, order.plan.micro_batch_size) == (0, 1, 4)
    node.forget().switches(to=0)
    assert kinds(node.emitted) == [events.GenerationStarted]
    node.reports(Interrupted(iteration=8, micro_batch_size=4), generation=2)
    assert node.emitted[1:] == [exceeded(4, generation=2)]


def test_in_a_pool_that_is_not_stop_free_it_stops_with_a_checkpoint() -> None:
    node = ExecutorNode().training(1).reports(Interrupted(iteration=7, micro_batch_size=8))
    assert (node.emitted, node.actions) == ([exceeded(8)], stops(0))


def test_a_profiling_run_starts_again_with_smaller_micro_batches() -> None:
    node = ExecutorNode().stop_free().settle().profile().place("node-0:0").forget()
    node.reports(Interrupted(iteration=0, micro_batch_size=8))
    assert (node.emitted, node.actions) == ([exceeded(8)], kills(0))
    node.ends(signal=9).place("node-0:0")
    (start,) = node.starts
    assert (start.assignment.purpose, start.assignment.plan.micro_batch_size) == ("profile", 4)


def test_a_failed_job_gets_no_further_report() -> None:
    node = ExecutorNode().stop_free().training(2).reports(Failed(error="one sample"), rank=1)
    node.reports(Interrupted(iteration=7, micro_batch_size=8))
    assert kinds(node.emitted) == [events.JobFailed]
