"""Workers that switch to the next generation of their job, at a resize or as survivors of a crash."""

from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import SendToWorker, WorkerId
from elasticflow.services.executor.decisions.state import node_report
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol.from_worker import (
    Alive,
    CheckpointWritten,
    ExitCode,
    Failed,
    Finished,
    Interrupted,
    Progressed,
    RendezvousListening,
    Started,
    Switched,
)
from elasticflow.shared.messages.worker_protocol.to_worker import (
    GenerationPlan,
    JoinRendezvous,
    PeersLost,
    PrepareSwitch,
)
from elasticflow.shared.state.job import StoppingWorkers
from testbed.histories import NOW_S, gpus
from tests.support.executor_node import OTHER_NODE, TIMELINE, ExecutorNode, kills, kinds, sent, stops

TIMES = FailureTimeouts()
JOINED = Started(iteration=7, resize=TIMELINE)
STARTED = events.GenerationStarted(
    job_id="a", generation=2, num_gpus=2, iteration=7, resize=TIMELINE, at_s=NOW_S, node_id="node-0"
)


def training(num_gpus: int = 1, **changes: Any) -> ExecutorNode:
    return ExecutorNode().settle().stop_free().ledger(OTHER_NODE).training(num_gpus, **changes)


def switch(
    rank: int, rendezvous_rank: int, world_size: int, rendezvous_size: int, *, generation: int = 2
) -> SendToWorker:
    order = PrepareSwitch(
        plan=GenerationPlan(generation=generation, world_size=world_size, rendezvous_size=rendezvous_size),
        rendezvous_rank=rendezvous_rank,
    )
    return sent(order, rank=rank)


def peers_lost(node: ExecutorNode) -> list[SendToWorker]:
    return [a for a in node.actions if isinstance(a, SendToWorker) and isinstance(a.message, PeersLost)]


def listens(node: ExecutorNode, *, generation: int = 1, rank: int = 0) -> ExecutorNode:
    return node.reports(RendezvousListening(generation=2, port=5000), generation=generation, rank=rank)


# --- growing --------------------------------------------------------------------------------------------


def test_joining_workers_start_at_once_and_staying_workers_get_one_order() -> None:
    node = training().place("node-0:0", "node-0:3").settle()
    (start,) = node.starts
    assert (node.actions, node.emitted) == ([switch(0, 0, 2, 2), start], [])
    joining = start.assignment
    assert (start.worker, joining.gpu_index) == (WorkerId("a", 2, 1), 3)
    assert (joining.plan.world_size, joining.plan.rendezvous_size) == (2, 2)


def test_other_counts_of_virtual_nodes_on_the_same_gpus_are_a_switch() -> None:
    node = training(2).place("node-0:0", "node-0:1", virtual_nodes_by_rank=(6, 2))
    orders = [action.message for action in node.actions if isinstance(action, SendToWorker)]
    assert [(o.rendezvous_rank, o.plan.virtual_nodes_by_rank) for o in orders if isinstance(o, PrepareSwitch)] == [
        (0, (6, 2)),
        (1, (6, 2)),
    ]
    assert (node.starts, node.emitted) == ([], [])
    node.switches(rank=0, to=0).switches(rank=1, to=1)
    assert node.emitted_of(events.GenerationStarted) == [STARTED]


def test_a_staying_worker_opens_the_rendezvous_and_the_joining_one_gets_its_address() -> None:
    node = listens(training().place("node-0:0", "node-0:3").forget())
    assert node.emitted == [
        events.RendezvousOpened(job_id="a", generation=2, address="10.0.0.1:5000", node_id="node-0")
    ]
    join = JoinRendezvous(generation=2, address="10.0.0.1:5000")
    assert node.actions == [sent(join, generation=2, rank=1)]


def test_a_staying_worker_gets_the_address_of_a_joining_one_on_another_node() -> None:
    opened = events.RendezvousOpened(job_id="a", generation=2, address="10.0.0.2:1")
    node = training().place("node-1:0", "node-0:0").ledger(opened, opened)
    assert node.actions == [
        switch(0, 1, 2, 2),
        sent(JoinRendezvous(generation=2, address="10.0.0.2:1")),
    ]


def test_after_the_switch_the_process_is_another_worker_and_the_start_is_reported() -> None:
    node = training().place("node-0:0", "node-0:3").forget()
    node.reports(JOINED, generation=2, rank=1)
    assert node.emitted == []
    node.switches(to=0)
    assert node.emitted == [STARTED]
    assert set(node.processes) == {WorkerId("a", 2, 0), WorkerId("a", 2, 1)}
    assert node.actions == []
    job = node.state.pool.live_jobs["a"]
    assert (job.training, job.stopping, job.checkpoint_iteration) == (True, (), 0)


def test_staying_workers_report_while_joining_ones_prepare() -> None:
    node = training().place("node-0:0", "node-0:3")
    node.reports(Progressed(iteration=5, iterations_per_s=1.0, metrics={})).reports(CheckpointWritten(iteration=4))
    (worker,) = node_report(node.state, NOW_S).workers
    assert (worker.generation, worker.iteration, worker.checkpoint_iteration) == (1, 5, 4)
    (worker,) = node_report(node.switches(to=0).state, NOW_S).workers
    assert (worker.generation, worker.iteration, worker.checkpoint_iteration) == (2, 7, 4)


def test_a_joining_worker_starts_once_its_gpu_is_free() -> None:
    node = training().training(0, "b").admit("c").place("node-0:3", job_id="c").forget()
    node.place(job_id="c").place("node-0:0", "node-0:3")
    assert node.starts == []
    node.ends(job_id="c", code=ExitCode.DONE)
    assert [start.worker for start in node.starts] == [WorkerId("a", 2, 1)]


def test_a_job_may_grow_again_before_all_its_workers_have_reported_their_switch() -> None:
    node = training(2).place("node-0:0", "node-0:1", "node-0:2", "node-0:3")
    node.switches(to=0).forget().place("node-0:0", "node-0:1", "node-0:2", "node-0:3", "node-1:0")
    assert [a.worker for a in node.actions] == [WorkerId("a", 2, 0), WorkerId("a", 1, 1)]
    node.switches(rank=1, to=1)
    assert len(node.actions) == 2
    assert node.state.workers[WorkerId("a", 2, 1)].target == WorkerId("a", 3, 1)


# --- shrinking and moving -------------------------------------------------------------------------------


def test_a_leaving_worker_has_a_rendezvous_rank_after_the_last_and_its_end_is_no_crash() -> None:
    node = training(2).place("node-0:1")
    assert node.actions == [switch(0, 1, 1, 2), switch(1, 0, 1, 2)]
    node.ends().at(NOW_S + TIMES.propagation_s)
    assert node.emitted == []
    node.switches(rank=1, to=0)
    assert kinds(node.emitted) == [events.GenerationStarted, events.WorkersStopped]
    assert node.emitted[1].generation == 1
    assert node.state.pool.live_jobs["a"].training
    assert len(node.actions) == 2


def test_a_leaving_worker_that_does_not_end_is_stopped_and_then_killed() -> None:
    node = training(2).place("node-0:1").forget().switches(rank=1, to=0)
    assert node.actions == stops(0)
    assert kinds(node.emitted) == [events.GenerationStarted]
    node.at(NOW_S + 10.0)
    assert node.actions == [*stops(0), *kills(0)]
    node.ends(signal=9)
    assert kinds(node.emitted[1:]) == [events.WorkersStopped]


def test_a_worker_is_not_stopped_before_it_can_report_its_switch() -> None:
    node = training(2).place("node-1:0", "node-0:1").forget().ledger(STARTED)
    assert (node.actions, node.emitted) == ([], [])
    node.switches(rank=1, to=1)
    assert node.actions == stops(0)  # it leaves
    node.ends()
    assert kinds(node.emitted) == [events.WorkersStopped]


def test_the_checkpoint_of_a_leaving_rank_0_is_reported_with_its_end() -> None:
    node = training(2).place("node-0:1").reports(CheckpointWritten(iteration=6)).ends().switches(rank=1, to=0)
    (gone,) = node.emitted_of(events.WorkersStopped)
    assert gone.iteration == 6
    assert node.state.pool.live_jobs["a"].checkpoint_iteration == 6


# --- crashes and losses ---------------------------------------------------------------------------------


def test_after_the_crash_of_a_joining_worker_the_staying_ones_train_on_until_the_next_attempt() -> None:
    node = training().place("node-0:0", "node-0:3").forget().ends(generation=2, rank=1, signal=9)
    assert [(f.generation, f.rank) for f in node.emitted_of(events.WorkerCrashed)] == [(2, 1)]
    assert node.actions == []
    node.place("node-0:0", "node-0:3")
    assert node.actions[0] == switch(0, 0, 2, 2, generation=3)
    (start,) = node.starts
    assert (start.worker, start.assignment.plan.rendezvous_size) == (WorkerId("a", 3, 1), 2)


def test_a_survivor_switches_without_the_crashed_worker() -> None:
    node = training(2).place("node-0:0", "node-0:1", "node-0:2", "node-1:0").forget().ends(rank=1, signal=9)
    assert [(f.generation, f.rank) for f in node.emitted] == [(1, 1)]
    assert node.actions == [*stops(2, generation=2), sent(PeersLost(generation=2))]
    node.ends(generation=2, rank=2, code=ExitCode.PEER_LOST).reports(Interrupted(iteration=12)).forget()
    node.place("node-0:0", "node-0:1")
    assert switch(0, 0, 2, 2, generation=3) in node.actions
    assert WorkerId("a", 3, 1) in node.processes
    node.reports(Started(iteration=12, resize=TIMELINE), generation=3, rank=1)
    node.reports(Switched(generation=3, rank=0, iteration=12, resize=TIMELINE))
    job = node.state.pool.live_jobs["a"]
    assert (job.training, job.iteration, job.restarts, job.previous_generation) == (True, 12, 0, None)


def test_survivors_learn_of_a_lost_peer_once() -> None:
    """And only of broken generations: the peers with which they go on are of another one."""
    node = training(2).ends(rank=1, signal=9)
    assert node.actions == [sent(PeersLost(generation=1))]
    node.reports(Interrupted(iteration=12)).forget().place("node-0:0", "node-0:1", "node-1:0").settle()
    assert peers_lost(node) == []
    node.forget().ledger(
        events.WorkerCrashed(job_id="a", generation=2, node_id="node-1", rank=2, explanation="", at_s=node.now_s)
    )
    assert peers_lost(node) == [sent(PeersLost(generation=2))]


def test_a_loss_that_is_folded_with_the_next_placement_is_sent_for_the_older_generation() -> None:
    lost = events.NodeLost(node_id="node-1", incarnation="x", reason="silent", at_s=NOW_S)
    again = events.PlacedJob(job_id="a", generation=3, gpus=gpus("node-0:0", "node-0:1"))
    node = training(1).place("node-0:0", "node-1:0").ledger(STARTED).switches(to=0).forget()
    node.ledger(lost, events.PlacementDecided(placements=(again,), at_s=NOW_S))
    assert peers_lost(node) == [sent(PeersLost(generation=2), generation=2)]


def test_a_survivor_that_ignores_the_order_to_switch_is_killed_and_counts_as_lost() -> None:
    """With NCCL a worker waits for a lost peer inside the GPU."""
    node = training(2).reports(Progressed(iteration=5, iterations_per_s=2.0, metrics={}))
    node.ends(rank=1, signal=9).place("node-0:0", "node-0:1").forget()
    assert node.policy.wake_at_s(node.state) == NOW_S + 1.5
    node.at(NOW_S + 1.5)
    assert node.actions == kills(0)
    node.ends(signal=9)
    assert [(f.generation, f.rank) for f in node.emitted_of(events.WorkerCrashed)] == [(1, 0)]
    assert node.state.pool.live_jobs["a"].previous_generation is None, "no worker holds the state any more"


def test_a_worker_with_an_unconfirmed_peer_loss_is_killed_and_counts_as_lost() -> None:
    """A connection broke, no worker did."""
    node = training(2).reports(Interrupted(iteration=5))
    assert node.policy.wake_at_s(node.state) == NOW_S + TIMES.loss_confirmation_s
    node.at(NOW_S + TIMES.loss_confirmation_s)
    assert [(f.generation, f.rank) for f in node.emitted_of(events.WorkerCrashed)] == [(1, 0)]
    assert kills(0)[0] in node.actions
    assert kills(1)[0] not in node.actions


def test_survivors_wait_longer_for_joining_workers_than_for_each_other() -> None:
    node = training(2).reports(Interrupted(iteration=5), rank=1).ends(signal=9)
    node.place("node-0:0", "node-0:1").at(NOW_S + TIMES.loss_confirmation_s).forget()
    node.at(NOW_S + node.state.pool.config.stall_timeout_s - 1.0)
    assert node.emitted_of(events.WorkerCrashed) == []
    node = training(3).reports(Interrupted(iteration=5), rank=1).ends(signal=9)
    node.place("node-0:1", "node-0:2").reports(Interrupted(iteration=5), rank=2)
    node.at(NOW_S + TIMES.rendezvous_timeout_s - 1.0)
    assert [event.rank for event in node.emitted_of(events.WorkerCrashed)] == [0]
    node.at(NOW_S + TIMES.rendezvous_timeout_s)
    assert [event.rank for event in node.emitted_of(events.WorkerCrashed)] == [0, 1], "no worker has to start"


def test_survivors_wait_for_joining_workers_as_long_as_a_start_may_take() -> None:
    node = training(2, start_timeout_s=600.0).reports(Interrupted(iteration=5), rank=1).ends(signal=9)
    node.place("node-0:0", "node-0:1").at(NOW_S + TIMES.loss_confirmation_s).forget()
    node.at(NOW_S + 599.0)
    assert node.emitted_of(events.WorkerCrashed) == []
    node.at(NOW_S + 600.0)
    assert [event.rank for event in node.emitted_of(events.WorkerCrashed)] == [0], "the other never joined"


def test_a_survivor_of_a_job_with_long_steps_has_time_to_notice_a_loss() -> None:
    """The step that it takes may last as long as the job declares."""
    usual, patient = (training(2, **declared) for declared in ({}, {"stall_timeout_s": 1_200.0}))
    for node in (usual, patient):
        node.ends(rank=0, signal=9).place("node-0:1").forget()
        node.at(NOW_S + 200.0)
    assert kills(1)[0] in usual.actions
    assert kills(1)[0] not in patient.actions


def test_a_survivor_whose_generation_has_started_is_not_charged_for_the_time_of_its_first_step() -> None:
    """Seen once: rank 0 reported a first step of 16.9 s, and rank 1, whose report came 10 ms later, was ended."""
    node = training(3).reports(Interrupted(iteration=39), rank=0).reports(Interrupted(iteration=39), rank=1)
    node.ends(rank=2, signal=9).place("node-0:0", "node-0:1")
    node.at(NOW_S + 16.9).forget().switches(rank=0, to=0)
    assert kinds(node.emitted) == [events.GenerationStarted]
    assert kills(1)[0] not in node.actions
    node.at(NOW_S + 16.91).switches(rank=1, to=1)
    assert (kinds(node.emitted), kills(1, generation=2)[0] in node.actions) == ([events.GenerationStarted], False)
    assert node.state.pool.live_jobs["a"].restarts == 0


def test_a_survivor_that_never_reports_its_switch_to_a_generation_that_started_is_given_up() -> None:
    node = training(3).reports(Interrupted(iteration=39), rank=0).reports(Interrupted(iteration=39), rank=1)
    node.ends(rank=2, signal=9).place("node-0:0", "node-0:1").at(NOW_S + 16.9).switches(rank=0, to=0).forget()
    node.at(NOW_S + 16.8 + TIMES.rendezvous_timeout_s)
    assert node.emitted == []
    node.at(NOW_S + 16.9 + TIMES.rendezvous_timeout_s)
    assert [(f.generation, f.rank) for f in node.emitted_of(events.WorkerCrashed)] == [(2, 1)]


def test_a_joining_worker_whose_generation_has_started_is_not_charged_for_the_time_of_its_first_step() -> None:
    node = training().place("node-0:0", "node-0:3")
    stalled_s = node.state.pool.config.stall_timeout_s
    node.at(NOW_S + stalled_s - 0.01).switches(to=0).forget().at(NOW_S + stalled_s + 0.01)
    assert node.emitted == []
    node.reports(JOINED, generation=2, rank=1)
    assert (node.emitted, node.actions) == ([], [])


def test_a_survivor_that_evaluates_has_not_ignored_the_loss_of_its_peer() -> None:
    """Each pass of its model is progress; a worker that waits for a lost peer makes none."""
    node = training(2).reports(Progressed(iteration=5, iterations_per_s=10.0, metrics={}))
    node.ends(rank=1, signal=9).place("node-0:0", "node-0:1").forget()
    node.at(NOW_S + 0.9).reports(Alive(iteration=5, seconds_since_progress=0.1))
    node.at(NOW_S + 1.7)
    assert node.actions == []
    node.at(NOW_S + 1.9)
    assert node.actions == kills(0)


def test_a_survivor_that_evaluates_for_longer_than_its_peers_wait_is_the_one_that_is_ended() -> None:
    node = training(3).reports(Progressed(iteration=5, iterations_per_s=10.0, metrics={}))
    node.reports(Interrupted(iteration=5), rank=1).ends(rank=2, signal=9).place("node-0:0", "node-0:1").forget()
    for second in range(1, int(TIMES.rendezvous_timeout_s)):
        node.at(NOW_S + second).reports(Alive(iteration=5, seconds_since_progress=0.0))
    assert kills(0)[0] in node.actions
    assert kills(1)[0] not in node.actions


def test_a_worker_that_dies_after_the_switch_is_lost_to_the_new_generation() -> None:
    node = training().place("node-1:0", "node-0:0").ledger(STARTED).forget().ends(signal=9)
    assert [(f.generation, f.rank) for f in node.emitted] == [(2, 1)]
    assert node.starts == []


def test_a_joining_worker_that_never_joins_counts_as_crashed() -> None:
    node = training().place("node-0:0", "node-0:3").forget()
    assert node.policy.wake_at_s(node.state) == NOW_S + 120.0
    node.at(NOW_S + 120.0)
    assert [f.explanation for f in node.emitted_of(events.WorkerCrashed)] == [
        "rank 1 on node-0 did not join the workers that train"
    ]
    assert node.actions == stops(1, generation=2)


def test_a_joining_worker_whose_packages_are_being_installed_has_time_for_that() -> None:
    node = training(requirements=("einops",)).place("node-0:0", "node-0:3")
    prepare_s = PoolConfig().prepare_timeout_s
    assert node.policy.wake_at_s(node.state) == NOW_S + 120.0 + prepare_s
    (start,) = node.starts
    assert start.assignment.timeouts.rendezvous_wait_s == TIMES.rendezvous_timeout_s + prepare_s
    assert start.assignment.timeouts.switch_wait_s == TIMES.collective_timeout_s + prepare_s


def test_survivors_wait_for_a_joining_worker_whose_packages_are_being_installed() -> None:
    node = training(2, requirements=("einops",)).reports(Interrupted(iteration=5), rank=1).ends(signal=9)
    node.place("node-0:0", "node-0:1").at(NOW_S + TIMES.loss_confirmation_s).forget()
    node.at(NOW_S + 119.0 + PoolConfig().prepare_timeout_s)
    assert node.emitted_of(events.WorkerCrashed) == []


def test_another_placement_stops_both_generations_at_a_boundary() -> None:
    """Joining workers may have joined without a report so far: their steps since the switch are worth a checkpoint."""
    node = training().place("node-0:0", "node-0:3").forget().place("node-0:0")
    assert node.actions == [*stops(0), *stops(1, generation=2)]
    node.switches(to=0).reports(CheckpointWritten(iteration=9), generation=2)
    assert (len(node.actions), node.emitted) == (
        2,
        [events.WorkersStopped(job_id="a", generation=1, node_id="node-0", at_s=NOW_S)],
    )
    node.ends(generation=2, rank=1).ends(generation=2)
    assert [(f.generation, f.iteration) for f in node.emitted[1:]] == [(2, 9)]


def test_the_job_may_finish_or_fail_while_joining_workers_prepare() -> None:
    node = training().place("node-0:0", "node-0:3").forget()
    node.reports(Finished(iteration=100, condition="max_iterations"))
    assert kinds(node.emitted) == [events.JobFinished]
    assert node.actions == [*stops(0, keeps_state=False), *stops(1, generation=2, keeps_state=False)]
    node = training().place("node-0:0", "node-0:3").forget()
    node.reports(Failed(error="no"), generation=2, rank=1)
    assert kinds(node.emitted) == [events.JobFailed]


def test_a_stop_is_not_reported_while_a_worker_may_be_in_that_generation() -> None:
    node = training().place("node-1:0", "node-0:0").ledger(STARTED).place("node-1:0").forget()
    node.ledger(events.WorkerCrashed(job_id="a", generation=3, node_id="node-1", rank=0, explanation="", at_s=NOW_S))
    assert StoppingWorkers(generation=2, node_id="node-0") not in node.state.pool.live_jobs["a"].stopping
    node.place("node-1:1")
    assert node.emitted == []
    node.ends(signal=9)
    assert [(f.generation, f.rank) for f in node.emitted_of(events.WorkerCrashed)] == [(2, 1)]
