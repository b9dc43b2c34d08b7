"""Which workers the executor of node-0 starts, stops at a step boundary, or kills."""

from dataclasses import replace
from typing import Literal

import pytest

from elasticflow.services.executor.decisions.local_events_and_actions import KillWorker, SendToWorker, WorkerId
from elasticflow.services.executor.decisions.state import PoolMembership
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    ExitCode,
    Progressed,
    RendezvousListening,
    Started,
)
from elasticflow.shared.messages.worker_protocol.to_worker import JoinRendezvous, StopAtBoundary
from elasticflow.shared.state.job import StoppingWorkers
from testbed.histories import NOW_S
from tests.support.executor_node import OTHER_NODE, ExecutorNode, kills, kinds, sent, stops

# --- starting -------------------------------------------------------------------------------------------


def test_it_joins_before_anything_else_and_once() -> None:
    node = ExecutorNode().settle().settle()
    assert kinds(node.emitted) == [events.NodeJoined]
    assert node.state.membership is PoolMembership.MEMBER


def test_a_placed_generation_is_started_and_reported_step_by_step() -> None:
    node = ExecutorNode().settle().ledger(OTHER_NODE).forget()
    node.admit().place("node-0:2", "node-0:3", "node-1:0")
    assignments = [start.assignment for start in node.starts]
    assert [(a.rank, a.gpu_index, a.plan.world_size, a.plan.rendezvous) for a in assignments] == [
        (0, 2, 3, ""),
        (1, 3, 3, ""),
    ]
    assert [a.shown_gpus for a in assignments] == [(2, 3), (2, 3)], "those of its job on this node"
    node.reports(RendezvousListening(generation=1, port=4000))
    assert node.emitted == [
        events.RendezvousOpened(job_id="a", generation=1, address="10.0.0.1:4000", node_id="node-0")
    ]
    assert node.actions[2:] == [sent(JoinRendezvous(generation=1, address="10.0.0.1:4000"), rank=1)]
    node.reports(Started(iteration=7), rank=1).reports(Started(iteration=7))
    assert node.emitted[1:] == [
        events.GenerationStarted(job_id="a", generation=1, num_gpus=3, iteration=7, at_s=NOW_S, node_id="node-0")
    ]


def test_workers_start_with_the_placed_numbers_of_virtual_nodes() -> None:
    node = ExecutorNode().settle().admit().place("node-0:2", "node-0:3", virtual_nodes_by_rank=(6, 2))
    assert [start.assignment.plan.virtual_nodes_by_rank for start in node.starts] == [(6, 2), (6, 2)]


def test_workers_learn_the_deadline_that_the_job_has_when_they_start() -> None:
    node = ExecutorNode().settle().admit("a").place("node-0:0", job_id="a")
    (start,) = node.starts
    assert start.assignment.deadline_s == node.state.pool.live_jobs["a"].deadline_s == NOW_S + 100.0


def test_workers_learn_the_types_of_gpus_if_these_differ() -> None:
    node = ExecutorNode().settle().ledger(replace(OTHER_NODE, gpu_type="P100")).stop_free()
    node.admit("a").place("node-0:0", job_id="a").admit("b").place("node-1:0", "node-0:1", job_id="b")
    assert [start.assignment.plan.gpu_types_by_rank for start in node.starts] == [(), ("P100", "")]
    node.reports(Started(iteration=0)).forget().place("node-0:0", "node-1:1")
    (order,) = [action.message for action in node.actions]
    assert order.plan.gpu_types_by_rank == ("", "P100")


@pytest.mark.parametrize(("device", "limit_bytes"), [("cpu", 1000), ("cuda", 0)])
def test_workers_on_cpu_slots_have_the_memory_limit_of_their_node(
    device: Literal["cpu", "cuda"], limit_bytes: int
) -> None:
    node = ExecutorNode().settle()
    specification = replace(node.state.node_specification, memory_limit_bytes=1000, device=device)
    node.state = replace(node.state, node_specification=specification)
    node.admit().place("node-0:0")
    assert [start.assignment.memory_limit_bytes for start in node.starts] == [limit_bytes]


def test_a_start_that_is_reported_late_names_its_checkpoint() -> None:
    node = ExecutorNode().settle().admit().place("node-0:0").reports(Started(iteration=7)).forget()
    job = node.state.pool.live_jobs["a"]
    not_started = replace(job, started_at_s=None)
    node.state = replace(
        node.state, pool=replace(node.state.pool, live_jobs=node.state.pool.live_jobs.set("a", not_started))
    )
    node.reports(Progressed(iteration=9, iterations_per_s=1.0, metrics={}))
    assert [event.iteration for event in node.emitted_of(events.GenerationStarted)] == [7]


def test_the_address_of_a_rank_0_on_another_node_is_sent_once() -> None:
    node = ExecutorNode().settle().ledger(OTHER_NODE).admit().place("node-1:0", "node-0:0").forget()
    opened = events.RendezvousOpened(job_id="a", generation=1, address="10.0.0.2:1")
    node.ledger(opened, opened)
    assert node.actions == [sent(JoinRendezvous(generation=1, address="10.0.0.2:1"), rank=1)]
    assert node.emitted == []


def test_a_worker_that_starts_late_gets_the_address_with_its_assignment() -> None:
    node = ExecutorNode().settle().ledger(OTHER_NODE).admit().admit("b").place("node-0:0", job_id="b")
    node.ledger(
        events.PlacementDecided(placements=(events.PlacedJob(job_id="b", generation=2, gpus=()),), at_s=node.now_s)
    )
    node.place("node-1:0", "node-0:0").ledger(events.RendezvousOpened(job_id="a", generation=1, address="10.0.0.2:1"))
    node.forget().ends(job_id="b", signal=9)
    (start,) = node.actions
    assert (start.worker, start.assignment.plan.rendezvous) == (WorkerId("a", 1, 1), "10.0.0.2:1")


def after_an_end_beside_b(of_a: str = "node-0:0") -> ExecutorNode:
    """Node-1 has ended while jobs a and b started there; a is placed first, here unless given, b next, on two nodes."""
    node = ExecutorNode().settle().ledger(OTHER_NODE, replace(OTHER_NODE, node_id="node-2")).admit("a").admit("b")
    node.place("node-1:0").place("node-1:1", job_id="b")
    ended = events.NodeLost(
        node_id="node-1", incarnation="x", reason="silent", at_s=NOW_S, heard_s=NOW_S, starts=(("a", 1), ("b", 1))
    )
    return node.ledger(ended).forget().place(of_a).place("node-0:1", "node-2:0", job_id="b")


A, B = WorkerId("a", 2, 0), WorkerId("b", 2, 0)


def test_jobs_in_whose_starts_a_node_has_ended_start_one_after_the_other_on_a_node() -> None:
    """If they started at once, another end would be held against both."""
    node = after_an_end_beside_b()
    assert [start.worker for start in node.starts] == [A]
    node.reports(Started(iteration=0), generation=2)
    assert [start.worker for start in node.starts] == [A, B]


def test_a_start_waits_for_another_one_until_that_is_over_or_takes_too_long() -> None:
    over = after_an_end_beside_b().ends(generation=2, signal=9)
    assert [start.worker for start in over.starts] == [A, B]
    slow = after_an_end_beside_b()
    due_s = NOW_S + PoolConfig().timeouts.turn_s
    assert slow.policy.wake_at_s(slow.state) == due_s
    assert [start.worker for start in slow.at(due_s - 0.1).starts] == [A]
    assert [start.worker for start in slow.at(due_s).starts] == [A, B]
    assert slow.policy.wake_at_s(slow.state) is None, "it does not wait any more"


def test_a_start_waits_for_workers_of_another_one_that_must_still_end_on_one_of_its_nodes() -> None:
    """The record of this node names their start until the ledger knows that they have ended."""
    node = after_an_end_beside_b("node-2:1").place("node-3:0")
    assert [start.worker for start in node.starts] == []
    node.ledger(events.WorkersStopped(job_id="a", generation=2, node_id="node-2", at_s=NOW_S))
    assert [start.worker for start in node.starts] == [B]


def test_starts_on_other_nodes_and_of_jobs_without_such_an_end_wait_for_none() -> None:
    apart = after_an_end_beside_b("node-3:0")
    assert [start.worker for start in apart.starts] == [B]
    node = after_an_end_beside_b().forget().admit("c").place("node-0:3", job_id="c")
    assert [start.worker for start in node.starts] == [WorkerId("c", 1, 0)]


def test_a_generation_waits_until_the_older_one_is_gone_everywhere() -> None:
    node = ExecutorNode().settle().ledger(OTHER_NODE)
    node.admit().place("node-1:0").place("node-0:0")
    assert node.actions == []
    node.ledger(events.WorkersStopped(job_id="a", generation=1, node_id="node-1", at_s=NOW_S))
    assert [start.worker for start in node.starts] == [WorkerId("a", 2, 0)]


def test_a_worker_starts_once_its_gpu_is_free() -> None:
    node = ExecutorNode().training(1).place().admit("b").place("node-0:0", job_id="b")
    assert node.starts == []
    node.ends(code=ExitCode.DONE)
    assert [start.worker for start in node.starts] == [WorkerId("b", 1, 0)]


# --- stopping -------------------------------------------------------------------------------------------


def test_a_resize_stops_at_a_boundary_and_reports_the_checkpoint() -> None:
    node = ExecutorNode().training(2).place("node-0:0")
    assert (node.actions, node.emitted) == (stops(0, 1), [])
    node.ends(rank=1)
    assert node.emitted == []
    node.reports(CheckpointWritten(iteration=40)).ends()
    assert node.emitted == [events.WorkersStopped(job_id="a", generation=1, node_id="node-0", iteration=40, at_s=NOW_S)]
    assert [start.worker for start in node.starts] == [WorkerId("a", 2, 0)]


def test_without_a_new_checkpoint_the_one_it_began_from_is_reported() -> None:
    node = ExecutorNode().settle().admit().place("node-0:0").reports(Started(iteration=30)).place().ends(signal=9)
    assert [event.iteration for event in node.emitted_of(events.WorkersStopped)] == [30]


def test_workers_that_do_not_train_yet_have_nothing_to_save() -> None:
    node = ExecutorNode().settle().admit().place("node-0:0").place()
    assert node.actions[1:] == kills(0)


def test_a_worker_that_does_not_stop_in_time_is_killed_once() -> None:
    node = ExecutorNode().training(1).place()
    assert node.policy.wake_at_s(node.state) == NOW_S + 10.0
    node.at(NOW_S + 9.9).at(NOW_S + 10.0).at(NOW_S + 20.0)
    assert node.actions == [*stops(0), *kills(0)]
    assert node.policy.wake_at_s(node.state) is None
    assert node.emitted == []
    node.ends(signal=9)
    assert kinds(node.emitted) == [events.WorkersStopped]


def test_the_workers_of_a_cancelled_job_have_the_grace_for_their_exit_handlers() -> None:
    """Also those that do not train yet: the user's code may run."""
    node = ExecutorNode().training(1).admit("b").place("node-0:1", job_id="b").forget()
    node.ledger(*(events.JobCancelled(job_id=job_id, reason="", at_s=NOW_S) for job_id in "ab"))
    stop = StopAtBoundary(keeps_state=False)
    assert node.actions == [SendToWorker(worker=WorkerId(job_id, 1, 0), message=stop) for job_id in "ab"]
    node.ends().forget()
    assert node.state.pool.ended_jobs["a"].stopping == ()
    node.at(NOW_S + 10.0)
    assert node.actions == [KillWorker(worker=WorkerId("b", 1, 0))]
    node.ends(job_id="b", signal=9)
    assert kinds(node.emitted) == [events.WorkersStopped]
    assert not node.state.workers


def test_the_profiling_run_of_a_cancelled_job_is_killed_at_once() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").reports(Started(iteration=0)).forget()
    node.ledger(events.JobCancelled(job_id="a", reason="", at_s=NOW_S))
    assert node.actions == kills(0)


def test_a_generation_that_never_ran_here_is_reported_gone() -> None:
    node = ExecutorNode().settle().admit()
    node.ledger(OTHER_NODE).place("node-1:0").place("node-0:0").forget().place("node-0:1")
    assert [(f.generation, f.iteration) for f in node.emitted_of(events.WorkersStopped)] == [(2, None)]
    assert node.state.pool.live_jobs["a"].stopping == (StoppingWorkers(generation=1, node_id="node-1"),)
