"""Given this history and these processes, the executor of node-0 tells these facts and takes these actions."""

from dataclasses import replace

import pytest

from services.executor.model import Membership
from services.executor.notes import (
    ContactLost,
    ContactRestored,
    Depart,
    Ended,
    KillWorkers,
    LeaveRequested,
    StartWorker,
    StopWorkers,
    TellRendezvous,
    WorkerId,
)
from services.executor.observing import report
from services.executor.verdict import PROFILE_LIMIT_S, QUIET_EXIT_S
from shared.messages import events
from shared.messages.pool_state import Phase, StoppingWorkers
from shared.messages.worker_channel import (
    Alive,
    Checkpointed,
    ExitCode,
    Failed,
    Finished,
    Profiled,
    Progressed,
    RendezvousListening,
    Started,
)
from tests.executor_node import ExecutorNode
from tests.histories import NOW_S

STOP_A1 = StopWorkers(job_id="a", generation=1)
KILL_A1 = KillWorkers(job_id="a", generation=1)
OTHER_NODE = events.NodeJoined(node_id="node-1", incarnation="x", num_gpus=4, device="cpu", at_s=NOW_S)


def kinds(outputs: list[object]) -> list[type]:
    return [type(output) for output in outputs]


def lost(node: ExecutorNode) -> events.NodeLost:
    return events.NodeLost(
        node_id="node-0", incarnation=node.state.incarnation, reason="silent", at_s=node.now_s
    )


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
    node.says(RendezvousListening(port=4000))
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


# --- ending ---------------------------------------------------------------------------------------------


def test_a_finished_job_is_told_once_with_all_that_led_to_it() -> None:
    node = ExecutorNode().settle().admit().place("node-0:0").forget()
    node.says(Started(iteration=0))
    node.says(Finished(iteration=100, condition="max_iterations", metrics={"loss": 0.5})).ends()
    assert kinds(node.told) == [events.GenerationStarted, events.JobFinished, events.WorkersStopped]
    job = node.state.pool.ended_jobs["a"]
    assert (job.phase, job.iteration, job.metrics) == (Phase.FINISHED, 100, {"loss": 0.5})


def test_workers_of_a_finished_job_may_write_their_last_lines() -> None:
    node = ExecutorNode().training(2).says(Finished(iteration=100, condition="metric")).ends()
    assert node.acted == [STOP_A1]
    node.at(NOW_S + 10.0)
    assert node.acted == [STOP_A1, KILL_A1]


def test_a_job_may_finish_while_it_is_being_stopped() -> None:
    node = ExecutorNode().training(1).place("node-0:1")
    node.says(Finished(iteration=100, condition="metric")).ends()
    assert kinds(node.told) == [events.JobFinished, events.WorkersStopped, events.WorkersStopped]
    assert {fact.generation for fact in node.told[1:]} == {1, 2}
    assert StartWorker not in kinds(node.acted)


def test_a_failure_ends_the_job_with_its_traceback() -> None:
    node = ExecutorNode().training(2).says(Failed(error="ValueError: 7", traceback="..."), rank=1)
    assert node.told == [
        events.JobFailed(job_id="a", generation=1, error="ValueError: 7", traceback="...", at_s=NOW_S)
    ]
    assert node.acted == [KILL_A1]
    node.ends(rank=1, code=ExitCode.FAILED).ends(code=ExitCode.PEER_LOST)
    assert kinds(node.told[1:]) == [events.WorkersStopped]


@pytest.mark.parametrize(
    ("end", "explanation"),
    [
        ({"signal": 9}, "rank 1 on node-0 was ended by SIGKILL"),
        ({"code": ExitCode.PEER_LOST}, "rank 1 on node-0 lost a peer"),
        ({"code": ExitCode.DEVICE_UNUSABLE}, "rank 1 on node-0 cannot use its GPU (its log says why)"),
        ({"code": 3}, "rank 1 on node-0 ended with exit code 3"),
    ],
)
def test_a_crash_is_told_once_and_ends_the_other_workers(end: dict[str, int], explanation: str) -> None:
    node = ExecutorNode().training(2).ends(rank=1, **end)
    assert [fact.explanation for fact in node.told_of(events.WorkerCrashed)] == [explanation]
    assert node.acted == [KILL_A1]
    node.ends(code=ExitCode.PEER_LOST)
    assert len(node.told) == 1
    node.place("node-0:0")
    assert kinds(node.told[1:]) == [events.WorkersStopped]
    assert [a.worker for a in node.acted[1:]] == [WorkerId("a", 2, 0)]


def test_the_one_that_died_explains_more_than_who_missed_it() -> None:
    node = ExecutorNode().training(2)
    for rank, end in ((0, {"exit_code": ExitCode.PEER_LOST}), (1, {"signal": 11})):
        node.state = node.policy.observe(node.state, Ended(worker=WorkerId("a", 1, rank), **end), node.now_s)
    node.settle()
    assert [fact.explanation for fact in node.told] == ["rank 1 on node-0 was ended by SIGSEGV"]


def test_a_job_that_crashes_again_and_again_fails() -> None:
    node = ExecutorNode().settle().admit()
    for generation in range(1, 7):
        node.place("node-0:0").ends(generation=generation, signal=11)
    assert len(node.told_of(events.WorkerCrashed)) == 5
    failed = node.told_of(events.JobFailed)
    assert [fact.error for fact in failed] == [
        "crashed 6 times in a row without a new checkpoint; last: rank 0 on node-0 was ended by SIGSEGV"
    ]


def test_a_quiet_exit_is_a_crash_only_if_nobody_elsewhere_asked_for_it() -> None:
    node = ExecutorNode().training(1).ends(code=ExitCode.DONE)
    assert node.told == []
    assert node.policy.wake_at_s(node.state) == NOW_S + QUIET_EXIT_S
    node.at(NOW_S + QUIET_EXIT_S)
    assert kinds(node.told) == [events.WorkerCrashed]

    node = ExecutorNode().training(1).ends(code=ExitCode.DONE).place("node-0:1").at(NOW_S + QUIET_EXIT_S)
    assert kinds(node.told) == [events.WorkersStopped]


# --- pre-runs -------------------------------------------------------------------------------------------


def test_a_pre_run_is_measured_once_and_its_end_is_no_crash() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").forget()
    node.says(Started(iteration=0)).says(Profiled(iterations_per_s=2.5, dataset_size=1000)).ends()
    node.at(NOW_S + QUIET_EXIT_S)
    assert kinds(node.told) == [events.GenerationStarted, events.ThroughputMeasured]
    curve = node.state.pool.curves["unseen/b64"]
    assert (curve.iterations_per_s, curve.dataset_size) == ({1: 2.5}, 1000)
    node.forget().place("node-0:0", "node-0:1")
    assert [(a.worker.rank, a.purpose) for a in node.acted] == [(0, "profile"), (1, "profile")]


def test_a_pre_run_that_is_replaced_is_killed_at_once() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").says(Started(iteration=0)).forget().place()
    assert node.acted == [KILL_A1]


def test_the_heartbeat_tells_how_far_a_pre_run_is() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").says(Started(iteration=0))
    node.says(Progressed(iteration=4, iterations_per_s=None, metrics={}))
    (worker,) = report(node.state, NOW_S + 1.0).workers
    assert (worker.job_id, worker.iteration) == ("a", 4)


def test_a_pre_run_that_hangs_fails_its_job() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").forget()
    assert node.policy.wake_at_s(node.state) == NOW_S + PROFILE_LIMIT_S
    node.at(NOW_S + PROFILE_LIMIT_S)
    assert kinds(node.told) == [events.JobFailed]
    assert node.acted == [KILL_A1]


# --- the node -------------------------------------------------------------------------------------------


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
