"""How a node joins, is lost, is cut off and shuts down: what its executor emits, and what becomes of its workers."""

from dataclasses import replace

import pytest

from elasticflow.history.event_text import event_text
from elasticflow.history.pool_views import job_view
from elasticflow.services.executor.decisions.local_events_and_actions import (
    ContactLost,
    ContactRestored,
    KillWorker,
    SendToWorker,
    ShutDown,
    ShutDownRequested,
    WorkerId,
)
from elasticflow.services.executor.decisions.state import node_report
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.worker_protocol.from_worker import (
    Alive,
    CheckpointWritten,
    Progressed,
    Started,
    Warned,
)
from elasticflow.shared.state.job import Job
from testbed.histories import NOW_S
from tests.support.executor_node import OTHER_NODE, ExecutorNode, kills, kinds, lost, stops


def job_of(node: ExecutorNode) -> Job:
    return node.state.pool.live_jobs["a"]


def test_a_node_counted_as_lost_kills_all_workers_and_joins_again() -> None:
    node = ExecutorNode().training(1)
    first = node.state.incarnation
    node.ledger(lost(node))
    assert (node.actions, node.emitted) == (kills(0), [])
    node.ends(signal=9)
    assert kinds(node.emitted) == [events.NodeJoined]
    assert node.state.incarnation != first
    node.forget().place("node-0:0")
    assert [start.worker for start in node.starts] == [WorkerId("a", 2, 0)]


def test_a_node_that_planners_await_says_once_that_it_is_still_there() -> None:
    node = ExecutorNode()
    specification = replace(node.state.node_specification, started_by="a supervisor")
    node.state = replace(node.state, node_specification=specification)
    node.training(1).ledger(OTHER_NODE).forget()
    back = replace(OTHER_NODE, incarnation="y", replaced_heard_s=NOW_S + 1.0, at_s=NOW_S + 30.0)
    node.ledger(back)
    (said,) = node.emitted
    assert isinstance(said, events.NodeJoined)
    assert (said.node_id, said.incarnation) == ("node-0", node.state.incarnation)
    assert not node.state.pool.nodes["node-0"].awaited
    assert (node.actions, job_of(node).broken) == ([], False), "its workers train on"


def test_a_replaced_executor_kills_all_workers_and_shuts_down() -> None:
    node = ExecutorNode().training(1)
    node.ledger(events.NodeJoined(node_id="node-0", incarnation="y", num_gpus=4, device="cpu", at_s=NOW_S))
    assert node.actions == kills(0)
    node.ends(signal=9)
    assert node.actions[1] == ShutDown(replaced=True)
    assert node.emitted == []


def test_a_node_that_shuts_down_stops_its_workers_at_a_boundary() -> None:
    """The next generation begins at their newest checkpoint, and `GenerationStarted` says which that was."""
    node = ExecutorNode().training(1).note(ShutDownRequested())
    assert node.actions == stops(0)
    node.reports(CheckpointWritten(iteration=12)).ends()
    assert kinds(node.emitted) == [events.NodeLost]
    assert node.emitted[0].reason == "left"
    assert node.actions[1] == ShutDown(replaced=False)
    assert node.state.pool.live_jobs["a"].broken


def test_a_worker_killed_during_a_shutdown_is_no_crash() -> None:
    node = ExecutorNode().training(1).note(ShutDownRequested()).at(NOW_S + 10.0).ends(signal=9)
    assert kinds(node.actions) == [SendToWorker, KillWorker, ShutDown]
    assert kinds(node.emitted) == [events.NodeLost]


def test_after_a_restart_a_broken_generation_is_not_started_but_reported_gone() -> None:
    before = ExecutorNode().training(1)
    node = ExecutorNode(before.state.pool, run_id="second").settle()
    assert kinds(node.emitted) == [events.NodeJoined]
    assert node.actions == []
    node.forget().place("node-0:0", "node-0:1")
    assert [event.generation for event in node.emitted] == [1]
    assert [start.worker.generation for start in node.starts] == [2, 2]


def test_without_contact_no_worker_starts_and_the_crash_is_explained() -> None:
    node = ExecutorNode().training(1).note(ContactLost(silence_s=1.6)).ends(signal=9)
    assert [event.explanation for event in node.emitted] == [
        "rank 0 on node-0 ended because NATS was out of reach for 1.6 s"
    ]
    node.place("node-0:0")
    assert node.starts == []
    node.note(ContactRestored())
    assert [start.worker for start in node.starts] == [WorkerId("a", 2, 0)]


def test_the_heartbeat_reports_the_progress_of_each_training_worker() -> None:
    node = ExecutorNode().training(2).reports(CheckpointWritten(iteration=5))
    node.reports(Progressed(iteration=9, iterations_per_s=3.0, metrics={"loss": 1.0}))
    node.reports(Progressed(iteration=8, iterations_per_s=3.0, metrics={"loss": 2.0}), rank=1)
    node.reports(Alive(iteration=8, seconds_since_progress=4.0), rank=1)
    heartbeat = node_report(node.state, NOW_S + 1.0)
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
            iterations_per_s=3.0,
            seconds_since_progress=5.0,
        ),
    )


def test_what_rank_0_says_of_its_code_is_in_the_history_of_the_job_once() -> None:
    node = ExecutorNode().training(2)
    said = Warned(warning="put_ has no deterministic implementation")
    node.reports(said, rank=1).settle()
    assert node.emitted_of(events.JobWarned) == [], "all workers say the same"
    node.reports(said).reports(said).settle()
    (event,) = node.emitted_of(events.JobWarned)
    job = node.state.pool.live_jobs["a"]
    assert job.warnings == (said.warning,)
    assert event_text(event, replace(job, warnings=()), job, node.state.pool) == f"warning: {said.warning}"
    assert event_text(event, job, job, node.state.pool) == ""
    assert node.unchanged_by(event)


def test_where_a_worker_hangs_is_in_the_history_of_the_job_whatever_its_rank() -> None:
    node = ExecutorNode().training(2)
    node.reports(Warned(warning="no step ended for 60 s; a worker is at train.py:9 in train", is_own=True), rank=1)
    node.settle()
    assert [event.warning for event in node.emitted_of(events.JobWarned)] == list(
        node.state.pool.live_jobs["a"].warnings
    )
    assert len(node.state.pool.live_jobs["a"].warnings) == 1


def test_what_the_code_does_in_a_long_start_is_in_the_history_of_the_job_once() -> None:
    node = ExecutorNode().settle().admit("a").place("node-0:0", "node-0:1")

    def says(phase: str, *, rank: int = 0) -> None:
        node.reports(Alive(iteration=0, seconds_since_progress=9.0, phase=phase), rank=rank).settle()

    says("")
    assert node.emitted_of(events.JobWarned) == [], "a short start is nothing to tell"
    says("in init_model()")
    (event,) = node.emitted_of(events.JobWarned)
    job = job_of(node)
    assert (event.phase, job.start_phases, job.warnings) == ("in init_model()", ("in init_model()",), ())
    assert job_view(job, NOW_S).activity_in_words == "starting, in init_model()"
    before = replace(job, start_phases=())
    assert event_text(event, before, job, node.state.pool) == "starting: a worker is in init_model()"
    assert event_text(event, job, job, node.state.pool) == ""
    for phase, rank in (("in init_dataset()", 1), ("in init_model()", 0), ("in init_dataset()", 1)):
        says(phase, rank=rank)
    assert [event.phase for event in node.emitted_of(events.JobWarned)] == ["in init_model()", "in init_dataset()"]
    assert node.unchanged_by(event)
    for rank in range(2):
        node.reports(Started(iteration=0), rank=rank)
    says("in init_model()")
    assert len(node.emitted_of(events.JobWarned)) == 2
    assert job_view(job_of(node), NOW_S).activity_in_words == "running"


def test_a_worker_that_joins_others_tells_no_phase() -> None:
    """The job trains meanwhile."""
    node = ExecutorNode().stop_free().training(1).place("node-0:0", "node-0:1")
    node.reports(Alive(iteration=0, seconds_since_progress=9.0, phase="in init_model()"), generation=2, rank=1).settle()
    assert node.emitted_of(events.JobWarned) == []


def test_a_worker_gets_the_timeouts_that_its_job_declares() -> None:
    node = ExecutorNode().settle().admit("a", start_timeout_s=600.0, stall_timeout_s=90.0).place("node-0:0")
    (start,) = node.starts
    timeouts = start.assignment.timeouts
    assert (timeouts.longest_start_s, timeouts.stall_timeout_s) == (600.0, 90.0)


@pytest.mark.parametrize(
    ("copies_checkpoints", "known", "waits"), [(True, 5, True), (True, 0, False), (False, 5, False)]
)
def test_workers_wait_longer_for_a_peer_whose_checkpoint_may_come_from_a_store(
    copies_checkpoints: bool, known: int, waits: bool
) -> None:
    """Else they would give up while a large one is on its way, and an outage of the store would count as crashes."""
    node = ExecutorNode().settle().admit("a")
    state, pool = node.state, node.state.pool
    job = replace(pool.live_jobs["a"], checkpoint_iteration=known)
    node.state = replace(
        state,
        pool=replace(pool, live_jobs=pool.live_jobs.set("a", job)),
        node_specification=replace(state.node_specification, copies_checkpoints=copies_checkpoints),
    )
    (start,) = node.place("node-0:0").starts
    assert start.assignment.timeouts.preparation_s == (pool.config.prepare_timeout_s if waits else 0.0)


def test_a_profiling_run_whose_start_is_declared_to_be_long_has_this_time_more() -> None:
    for declared, limit_s in (({}, 600.0), ({"start_timeout_s": 700.0}, 600.0 + 580.0)):
        node = ExecutorNode().settle().profile("a", **declared).place("node-0:0")
        node.at(NOW_S + limit_s - 1.0)
        assert node.emitted_of(events.JobFailed) == []
        node.at(NOW_S + limit_s)
        assert f"did not end within {limit_s:.0f} s" in node.emitted_of(events.JobFailed)[0].error


def test_a_job_has_few_warnings() -> None:
    node = ExecutorNode().training(1)
    for number in range(20):
        node.reports(Warned(warning=f"{number}")).settle()
    assert len(node.emitted_of(events.JobWarned)) == len(node.state.pool.live_jobs["a"].warnings) == 8


@pytest.mark.parametrize("times", [2, 5, 6])
def test_a_job_fails_once_as_many_nodes_were_lost_that_prepared_it_as_it_may_crash(times: int) -> None:
    """No worker of it ran on them: two of them are not enough."""
    node = ExecutorNode().settle().admit("a")
    pool = node.state.pool
    job = replace(pool.live_jobs["a"], nodes_lost_in_preparation=tuple(f"node-{number}" for number in range(times)))
    node.state = replace(node.state, pool=replace(pool, live_jobs=pool.live_jobs.set("a", job)))
    node.place("node-0:0")
    failed = node.emitted_of(events.JobFailed)
    assert (len(node.starts), len(failed)) == ((0, 1) if times > PoolConfig().max_restarts else (1, 0))
    for event in failed:
        assert event.error.startswith("crashed 6 times in a row without a new checkpoint; last: nodes were lost that ")
        assert "prepared it (node-0, node-1, " in event.error
