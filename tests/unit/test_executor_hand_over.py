"""Given a job whose workers go over to its next generation, the executor of node-0 starts, tells and ends these."""

from services.executor.notes import (
    ChangeMembers,
    KillWorker,
    StartWorker,
    StopWorkers,
    TellPeersLost,
    TellRendezvous,
    WorkerId,
)
from services.executor.observing import report
from shared.messages import events
from shared.messages.detection import DetectionTimes
from shared.messages.from_worker import (
    Checkpointed,
    ExitCode,
    Failed,
    Finished,
    Interrupted,
    Progressed,
    RendezvousListening,
    Started,
    Switched,
)
from shared.messages.job_state import StoppingWorkers
from tests.executor_node import KILL_A1, OTHER_NODE, STOP_A1, TIMELINE, ExecutorNode, kinds
from tests.histories import NOW_S, gpus

TIMES = DetectionTimes()
JOINED = Started(iteration=7, resize=TIMELINE)
STOP_A2 = StopWorkers(job_id="a", generation=2)
STARTED = events.GenerationStarted(
    job_id="a", generation=2, num_gpus=2, iteration=7, resize=TIMELINE, at_s=NOW_S
)


def training(num_gpus: int = 1) -> ExecutorNode:
    return ExecutorNode().settle().stop_free().ledger(OTHER_NODE).training(num_gpus)


def change(
    rank: int, place: int, world_size: int, meeting_size: int, *, generation: int = 2
) -> ChangeMembers:
    return ChangeMembers(
        worker=WorkerId("a", 1, rank),
        generation=generation,
        place=place,
        world_size=world_size,
        meeting_size=meeting_size,
    )


def listens(node: ExecutorNode, *, generation: int = 1, rank: int = 0) -> ExecutorNode:
    return node.says(RendezvousListening(generation=2, port=5000), generation=generation, rank=rank)


# --- growing --------------------------------------------------------------------------------------------


def test_newcomers_start_at_once_and_incumbents_are_told_once() -> None:
    node = training().place("node-0:0", "node-0:3").settle()
    newcomer = node.acted[1]
    assert node.acted[0] == change(0, 0, 2, 2)
    assert isinstance(newcomer, StartWorker)
    assert (newcomer.worker, newcomer.gpu_index, newcomer.world_size, newcomer.meeting_size) == (
        WorkerId("a", 2, 1),
        3,
        2,
        2,
    )
    assert (len(node.acted), node.told) == (2, [])


def test_an_incumbent_opens_the_meeting_and_the_newcomer_hears_where() -> None:
    node = listens(training().place("node-0:0", "node-0:3").forget())
    assert node.told == [events.RendezvousOpened(job_id="a", generation=2, address="10.0.0.1:5000")]
    assert node.acted == [TellRendezvous(job_id="a", generation=2, address="10.0.0.1:5000")]


def test_an_incumbent_hears_where_a_newcomer_of_another_node_listens() -> None:
    opened = events.RendezvousOpened(job_id="a", generation=2, address="10.0.0.2:1")
    node = training().place("node-1:0", "node-0:0").ledger(opened, opened)
    assert node.acted == [
        change(0, 1, 2, 2),
        TellRendezvous(job_id="a", generation=2, address="10.0.0.2:1"),
    ]


def test_after_the_switch_the_process_is_another_worker_and_the_start_is_told() -> None:
    node = training().place("node-0:0", "node-0:3").forget()
    node.says(JOINED, generation=2, rank=1)
    assert node.told == []
    node.switches(to=0)
    assert node.told == [STARTED]
    assert set(node.processes) == {WorkerId("a", 2, 0), WorkerId("a", 2, 1)}
    assert node.acted == []
    job = node.state.pool.live_jobs["a"]
    assert (job.training, job.stopping, job.checkpoint_iteration) == (True, (), 0)


def test_incumbents_report_while_newcomers_prepare() -> None:
    node = training().place("node-0:0", "node-0:3")
    node.says(Progressed(iteration=5, iterations_per_s=1.0, metrics={})).says(Checkpointed(iteration=4))
    (worker,) = report(node.state, NOW_S).workers
    assert (worker.generation, worker.iteration, worker.checkpoint_iteration) == (1, 5, 4)
    (worker,) = report(node.switches(to=0).state, NOW_S).workers
    assert (worker.generation, worker.iteration, worker.checkpoint_iteration) == (2, 7, 4)


def test_a_newcomer_waits_for_a_gpu_that_is_occupied() -> None:
    node = training().training(0, "b").admit("c").place("node-0:3", job_id="c").forget()
    node.place(job_id="c").place("node-0:0", "node-0:3")
    assert StartWorker not in kinds(node.acted)
    node.ends(job_id="c", code=ExitCode.DONE)
    assert [a.worker for a in node.acted if isinstance(a, StartWorker)] == [WorkerId("a", 2, 1)]


def test_a_job_may_grow_again_before_all_its_workers_have_said_that_they_went_over() -> None:
    node = training(2).place("node-0:0", "node-0:1", "node-0:2", "node-0:3")
    node.switches(to=0).forget().place("node-0:0", "node-0:1", "node-0:2", "node-0:3", "node-1:0")
    assert [a.worker for a in node.acted] == [WorkerId("a", 2, 0), WorkerId("a", 1, 1)]
    node.switches(rank=1, to=1)
    assert len(node.acted) == 2
    assert node.state.workers[WorkerId("a", 2, 1)].place == WorkerId("a", 3, 1)


# --- shrinking and moving -------------------------------------------------------------------------------


def test_whoever_leaves_has_a_place_after_the_last_rank_and_its_end_is_no_crash() -> None:
    node = training(2).place("node-0:1")
    assert node.acted == [change(0, 1, 1, 2), change(1, 0, 1, 2)]
    node.ends().at(NOW_S + TIMES.word_s)
    assert node.told == []
    node.switches(rank=1, to=0)
    assert kinds(node.told) == [events.GenerationStarted, events.WorkersStopped]
    assert node.told[1].generation == 1
    assert node.state.pool.live_jobs["a"].training
    assert len(node.acted) == 2


def test_a_leaver_that_does_not_go_is_asked_to_and_then_killed() -> None:
    node = training(2).place("node-0:1").forget().switches(rank=1, to=0)
    assert node.acted == [STOP_A1]
    assert kinds(node.told) == [events.GenerationStarted]
    node.at(NOW_S + 10.0)
    assert node.acted == [STOP_A1, KILL_A1]
    node.ends(signal=9)
    assert kinds(node.told[1:]) == [events.WorkersStopped]


def test_nobody_is_stopped_who_has_gone_over_and_not_yet_said_so() -> None:
    node = training(2).place("node-1:0", "node-0:1").forget().ledger(STARTED)
    assert (node.acted, node.told) == ([], [])
    node.switches(rank=1, to=1)
    assert node.acted == [STOP_A1]  # to rank 0, which leaves
    node.ends()
    assert kinds(node.told) == [events.WorkersStopped]


def test_a_checkpoint_of_rank_0_that_leaves_is_told_with_its_end() -> None:
    node = training(2).place("node-0:1").says(Checkpointed(iteration=6)).ends().switches(rank=1, to=0)
    (gone,) = node.told_of(events.WorkersStopped)
    assert gone.iteration == 6
    assert node.state.pool.live_jobs["a"].checkpoint_iteration == 6


# --- what may go wrong ----------------------------------------------------------------------------------


def test_the_crash_of_a_newcomer_leaves_the_incumbents_training_for_the_next_try() -> None:
    node = training().place("node-0:0", "node-0:3").forget().ends(generation=2, rank=1, signal=9)
    assert [(f.generation, f.rank) for f in node.told_of(events.WorkerCrashed)] == [(2, 1)]
    assert node.acted == []
    node.place("node-0:0", "node-0:3")
    assert node.acted[0] == change(0, 0, 2, 2, generation=3)
    started = [a for a in node.acted if isinstance(a, StartWorker)]
    assert [(a.worker, a.meeting_size) for a in started] == [(WorkerId("a", 3, 1), 2)]


def test_who_survives_an_incumbent_goes_over_without_it() -> None:
    node = training(2).place("node-0:0", "node-0:1", "node-0:2", "node-1:0").forget().ends(rank=1, signal=9)
    assert [(f.generation, f.rank) for f in node.told] == [(1, 1)]
    assert set(node.acted) == {STOP_A2, TellPeersLost(worker=WorkerId("a", 1, 0), generation=2)}
    node.ends(generation=2, rank=2, code=ExitCode.PEER_LOST).says(Interrupted(iteration=12)).forget()
    node.place("node-0:0", "node-0:1")
    assert change(0, 0, 2, 2, generation=3) in node.acted
    assert WorkerId("a", 3, 1) in node.processes
    node.says(Started(iteration=12, resize=TIMELINE), generation=3, rank=1)
    node.says(Switched(generation=3, rank=0, iteration=12, resize=TIMELINE))
    job = node.state.pool.live_jobs["a"]
    assert (job.training, job.iteration, job.restarts, job.predecessor) == (True, 12, 0, None)


def test_survivors_are_told_once_whom_they_need_not_wait_for() -> None:
    """And only of what is broken: those with whom they are to go on are of a generation of their own."""
    node = training(2).ends(rank=1, signal=9)
    assert node.acted == [TellPeersLost(worker=WorkerId("a", 1, 0), generation=1)]
    node.says(Interrupted(iteration=12)).forget().place("node-0:0", "node-0:1", "node-1:0").settle()
    assert TellPeersLost not in kinds(node.acted)
    node.forget().ledger(
        events.WorkerCrashed(
            job_id="a", generation=2, node_id="node-1", rank=2, explanation="", at_s=node.now_s
        )
    )
    assert TellPeersLost(worker=WorkerId("a", 1, 0), generation=2) in node.acted


def test_a_survivor_that_learns_of_a_loss_together_with_what_follows_is_not_torn_from_that() -> None:
    lost = events.NodeLost(node_id="node-1", incarnation="x", reason="silent", at_s=NOW_S)
    again = events.PlacedJob(job_id="a", generation=3, gpus=gpus("node-0:0", "node-0:1"))
    node = training(1).place("node-0:0", "node-1:0").ledger(STARTED).switches(to=0).forget()
    node.ledger(lost, events.PlacementDecided(placements=(again,), at_s=NOW_S))
    assert TellPeersLost(worker=WorkerId("a", 2, 0), generation=2) in node.acted


def test_who_survives_and_is_told_to_go_on_but_notices_nothing_is_lost_too() -> None:
    """NCCL waits for a lost peer inside the GPU."""
    node = training(2).says(Progressed(iteration=5, iterations_per_s=2.0, metrics={}))
    node.ends(rank=1, signal=9).place("node-0:0", "node-0:1").forget()
    assert node.policy.wake_at_s(node.state) == NOW_S + 1.5
    node.at(NOW_S + 1.5)
    assert node.acted == [KillWorker(worker=WorkerId("a", 1, 0))]
    node.ends(signal=9)
    assert [(f.generation, f.rank) for f in node.told_of(events.WorkerCrashed)] == [(1, 0)]
    assert node.state.pool.live_jobs["a"].predecessor is None, "nobody has the state any more"


def test_who_lost_a_peer_that_nobody_misses_is_ended_and_missed_itself() -> None:
    """A connection broke, and no worker did."""
    node = training(2).says(Interrupted(iteration=5))
    assert node.policy.wake_at_s(node.state) == NOW_S + TIMES.missed_s
    node.at(NOW_S + TIMES.missed_s)
    assert [(f.generation, f.rank) for f in node.told_of(events.WorkerCrashed)] == [(1, 0)]
    assert KillWorker(worker=WorkerId("a", 1, 0)) in node.acted
    assert KillWorker(worker=WorkerId("a", 1, 1)) not in node.acted


def test_who_waits_for_a_newcomer_misses_nobody_for_as_long_as_that_may_take() -> None:
    node = training(2).says(Interrupted(iteration=5), rank=1).ends(signal=9)
    node.place("node-0:0", "node-0:1").at(NOW_S + TIMES.missed_s).forget()
    node.at(NOW_S + node.state.pool.config.stall_timeout_s - 1.0)
    assert node.told_of(events.WorkerCrashed) == []
    node = training(3).says(Interrupted(iteration=5), rank=1).ends(signal=9)
    node.place("node-0:1", "node-0:2").says(Interrupted(iteration=5), rank=2)
    node.at(NOW_S + TIMES.start_s - 1.0)
    assert [fact.rank for fact in node.told_of(events.WorkerCrashed)] == [0]
    node.at(NOW_S + TIMES.start_s)
    assert [fact.rank for fact in node.told_of(events.WorkerCrashed)] == [0, 1], "nobody has to start"


def test_whoever_dies_after_the_switch_is_missed_in_the_new_generation() -> None:
    node = training().place("node-1:0", "node-0:0").ledger(STARTED).forget().ends(signal=9)
    assert [(f.generation, f.rank) for f in node.told] == [(2, 1)]
    assert StartWorker not in kinds(node.acted)


def test_a_newcomer_that_never_comes_is_given_up() -> None:
    node = training().place("node-0:0", "node-0:3").forget()
    assert node.policy.wake_at_s(node.state) == NOW_S + 120.0
    node.at(NOW_S + 120.0)
    assert [f.explanation for f in node.told_of(events.WorkerCrashed)] == [
        "rank 1 on node-0 did not come to join those that train"
    ]
    assert node.acted == [StopWorkers(job_id="a", generation=2)]


def test_another_placement_stops_both_generations_at_a_boundary() -> None:
    """Newcomers may have joined, and not yet said so: what they did since the switch is worth a checkpoint too."""
    node = training().place("node-0:0", "node-0:3").forget().place("node-0:0")
    assert node.acted == [STOP_A1, StopWorkers(job_id="a", generation=2)]
    node.switches(to=0).says(Checkpointed(iteration=9), generation=2)
    assert (len(node.acted), node.told) == (
        2,
        [events.WorkersStopped(job_id="a", generation=1, node_id="node-0", at_s=NOW_S)],
    )
    node.ends(generation=2, rank=1).ends(generation=2)
    assert [(f.generation, f.iteration) for f in node.told[1:]] == [(2, 9)]


def test_the_job_may_finish_or_fail_while_newcomers_prepare() -> None:
    node = training().place("node-0:0", "node-0:3").forget()
    node.says(Finished(iteration=100, condition="max_iterations"))
    assert kinds(node.told) == [events.JobFinished]
    assert node.acted == [STOP_A1, StopWorkers(job_id="a", generation=2)]
    node = training().place("node-0:0", "node-0:3").forget()
    node.says(Failed(error="no"), generation=2, rank=1)
    assert kinds(node.told) == [events.JobFailed]


def test_a_stop_is_not_reported_while_a_worker_may_be_in_that_generation() -> None:
    node = training().place("node-1:0", "node-0:0").ledger(STARTED).place("node-1:0").forget()
    node.ledger(
        events.WorkerCrashed(job_id="a", generation=3, node_id="node-1", rank=0, explanation="", at_s=NOW_S)
    )
    assert StoppingWorkers(generation=2, node_id="node-0") not in node.state.pool.live_jobs["a"].stopping
    node.place("node-1:1")
    assert node.told == []
    node.ends(signal=9)
    assert [(f.generation, f.rank) for f in node.told_of(events.WorkerCrashed)] == [(2, 1)]
