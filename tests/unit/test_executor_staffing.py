"""Given this history, the executor of node-0 starts these workers, and stops or kills those."""

from dataclasses import replace

from services.executor.model import Membership
from services.executor.notes import (
    StartWorker,
    TellRendezvous,
    WorkerId,
)
from shared.messages import events
from shared.messages.from_worker import Checkpointed, ExitCode, Progressed, RendezvousListening, Started
from shared.messages.job_state import StoppingWorkers
from tests.executor_node import KILL_A1, OTHER_NODE, STOP_A1, ExecutorNode, kinds
from tests.histories import NOW_S

# --- starting -------------------------------------------------------------------------------------------


def test_it_joins_before_anything_else_and_once() -> None:
    node = ExecutorNode().settle().settle()
    assert kinds(node.told) == [events.NodeJoined]
    assert node.state.membership is Membership.MEMBER


def test_what_is_placed_here_is_started_and_told_step_by_step() -> None:
    node = ExecutorNode().settle().ledger(OTHER_NODE).forget()
    node.admit().place("node-0:2", "node-0:3", "node-1:0")
    assert [(a.worker.rank, a.gpu_index, a.world_size, a.rendezvous) for a in node.acted] == [
        (0, 2, 3, ""),
        (1, 3, 3, ""),
    ]
    node.says(RendezvousListening(generation=1, port=4000))
    assert node.told == [events.RendezvousOpened(job_id="a", generation=1, address="10.0.0.1:4000")]
    assert node.acted[2:] == [TellRendezvous(job_id="a", generation=1, address="10.0.0.1:4000")]
    node.says(Started(iteration=7), rank=1).says(Started(iteration=7))
    assert node.told[1:] == [
        events.GenerationStarted(job_id="a", generation=1, num_gpus=3, iteration=7, at_s=NOW_S)
    ]


def test_a_start_that_is_told_late_is_told_from_its_checkpoint() -> None:
    node = ExecutorNode().settle().admit().place("node-0:0").says(Started(iteration=7)).forget()
    job = node.state.pool.live_jobs["a"]
    untold = replace(job, started_at_s=None)
    node.state = replace(
        node.state, pool=replace(node.state.pool, live_jobs=node.state.pool.live_jobs.set("a", untold))
    )
    node.says(Progressed(iteration=9, iterations_per_s=1.0, metrics={}))
    assert [fact.iteration for fact in node.told_of(events.GenerationStarted)] == [7]


def test_the_address_of_a_distant_rank_0_is_passed_on_once() -> None:
    node = ExecutorNode().settle().ledger(OTHER_NODE).admit().place("node-1:0", "node-0:0").forget()
    opened = events.RendezvousOpened(job_id="a", generation=1, address="10.0.0.2:1")
    node.ledger(opened, opened)
    assert node.acted == [TellRendezvous(job_id="a", generation=1, address="10.0.0.2:1")]
    assert node.told == []


def test_a_worker_that_starts_late_gets_the_address_with_its_assignment() -> None:
    node = ExecutorNode().settle().ledger(OTHER_NODE).admit().admit("b").place("node-0:0", job_id="b")
    node.ledger(
        events.PlacementDecided(
            placements=(events.PlacedJob(job_id="b", generation=2, gpus=()),), at_s=node.now_s
        )
    )
    node.place("node-1:0", "node-0:0").ledger(
        events.RendezvousOpened(job_id="a", generation=1, address="10.0.0.2:1")
    )
    node.forget().ends(job_id="b", signal=9)
    assert [(a.worker, a.rendezvous) for a in node.acted] == [(WorkerId("a", 1, 1), "10.0.0.2:1")]


def test_a_generation_waits_until_the_older_one_is_gone_everywhere() -> None:
    node = ExecutorNode().settle().ledger(OTHER_NODE)
    node.admit().place("node-1:0").place("node-0:0")
    assert node.acted == []
    node.ledger(events.WorkersStopped(job_id="a", generation=1, node_id="node-1", at_s=NOW_S))
    assert [a.worker for a in node.acted] == [WorkerId("a", 2, 0)]


def test_an_occupied_gpu_is_waited_for() -> None:
    node = ExecutorNode().training(1).place().admit("b").place("node-0:0", job_id="b")
    assert StartWorker not in kinds(node.acted)
    node.ends(code=ExitCode.DONE)
    assert [a.worker for a in node.acted if isinstance(a, StartWorker)] == [WorkerId("b", 1, 0)]


# --- stopping -------------------------------------------------------------------------------------------


def test_a_resize_stops_at_a_boundary_and_tells_the_checkpoint() -> None:
    node = ExecutorNode().training(2).place("node-0:0")
    assert (node.acted, node.told) == ([STOP_A1], [])
    node.ends(rank=1)
    assert node.told == []
    node.says(Checkpointed(iteration=40)).ends()
    assert node.told == [
        events.WorkersStopped(job_id="a", generation=1, node_id="node-0", iteration=40, at_s=NOW_S)
    ]
    assert [a.worker for a in node.acted[1:]] == [WorkerId("a", 2, 0)]


def test_without_a_new_checkpoint_the_one_it_began_from_is_told() -> None:
    node = (
        ExecutorNode().settle().admit().place("node-0:0").says(Started(iteration=30)).place().ends(signal=9)
    )
    assert [fact.iteration for fact in node.told_of(events.WorkersStopped)] == [30]


def test_workers_that_do_not_train_yet_have_nothing_to_save() -> None:
    node = ExecutorNode().settle().admit().place("node-0:0").place()
    assert node.acted[1:] == [KILL_A1]


def test_who_does_not_stop_in_time_is_killed_once() -> None:
    node = ExecutorNode().training(1).place()
    assert node.policy.wake_at_s(node.state) == NOW_S + 10.0
    node.at(NOW_S + 9.9).at(NOW_S + 10.0).at(NOW_S + 20.0)
    assert node.acted == [STOP_A1, KILL_A1]
    assert node.policy.wake_at_s(node.state) is None
    assert node.told == []
    node.ends(signal=9)
    assert kinds(node.told) == [events.WorkersStopped]


def test_the_workers_of_a_cancelled_job_are_killed_at_once() -> None:
    node = ExecutorNode().training(1).ledger(events.JobCancelled(job_id="a", reason="", at_s=NOW_S))
    assert node.acted == [KILL_A1]
    node.ends(signal=9)
    assert kinds(node.told) == [events.WorkersStopped]
    assert node.state.pool.ended_jobs["a"].stopping == ()
    assert not node.state.workers


def test_a_generation_that_never_ran_here_is_reported_gone() -> None:
    node = ExecutorNode().settle().admit()
    node.ledger(OTHER_NODE).place("node-1:0").place("node-0:0").forget().place("node-0:1")
    assert [(f.generation, f.iteration) for f in node.told_of(events.WorkersStopped)] == [(2, None)]
    assert node.state.pool.live_jobs["a"].stopping == (StoppingWorkers(generation=1, node_id="node-1"),)
