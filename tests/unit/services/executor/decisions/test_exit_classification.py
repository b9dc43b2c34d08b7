"""What the executor of node-0 emits about a job when its workers end."""

from dataclasses import replace

import pytest

from elasticflow.services.executor.decisions.local_events_and_actions import WorkerEnded, WorkerId, WorkerReported
from elasticflow.services.executor.decisions.state import node_report
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import ContinuedJob
from elasticflow.shared.messages.measurements import SingleGpuStepTimes, VirtualNodeCount
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    Ending,
    ExitCode,
    Failed,
    Finished,
    Interrupted,
    Profiled,
    Progressed,
    Started,
)
from elasticflow.shared.state.job import Phase
from testbed.histories import NOW_S
from tests.support.executor_node import OTHER_NODE, ExecutorNode, kills, kinds, stops

TIMES = FailureTimeouts()

# --- ending ---------------------------------------------------------------------------------------------


def test_a_finished_job_is_reported_once_after_its_start() -> None:
    node = ExecutorNode().settle().admit().place("node-0:0").forget()
    node.reports(Started(iteration=0))
    node.reports(Finished(iteration=100, condition="max_iterations", metrics={"loss": 0.5})).ends()
    assert kinds(node.emitted) == [events.GenerationStarted, events.JobFinished, events.WorkersStopped]
    job = node.state.pool.ended_jobs["a"]
    assert (job.phase, job.iteration, job.metrics) == (Phase.FINISHED, 100, {"loss": 0.5})


def test_a_start_from_an_older_checkpoint_is_reported() -> None:
    node = ExecutorNode().settle().admit().place("node-0:0").forget()
    node.reports(Started(iteration=7, lost_checkpoints="g1: damaged"))
    (started,) = node.emitted
    assert isinstance(started, events.GenerationStarted)
    assert (started.iteration, started.lost_checkpoints) == (7, "g1: damaged")


def test_workers_of_a_finished_job_may_write_their_last_log_lines() -> None:
    node = ExecutorNode().training(2).reports(Finished(iteration=100, condition="metric")).ends()
    assert node.actions == stops(0, 1, keeps_state=False)
    node.at(NOW_S + 10.0)
    assert node.actions == [*stops(0, 1, keeps_state=False), *kills(1)]


def test_a_job_may_finish_while_it_is_being_stopped() -> None:
    node = ExecutorNode().training(1).place("node-0:1")
    node.reports(Finished(iteration=100, condition="metric")).ends()
    assert kinds(node.emitted) == [events.JobFinished, events.WorkersStopped, events.WorkersStopped]
    assert {event.generation for event in node.emitted[1:]} == {1, 2}
    assert node.starts == []


def test_a_job_that_took_two_nodes_along_at_its_start_fails_before_it_starts_on_a_third() -> None:
    node = ExecutorNode().settle().admit()
    for name in ("node-1", "node-2"):
        node.ledger(replace(OTHER_NODE, node_id=name)).place(f"{name}:0")
        node.ledger(events.NodeLost(node_id=name, incarnation="x", reason="silent", at_s=NOW_S))
    assert node.emitted_of(events.JobFailed) == []
    node.place("node-0:0")
    (failed,) = node.emitted_of(events.JobFailed)
    assert (failed.generation, node.starts) == (3, [])
    assert "node-1, node-2" in failed.error
    assert node.state.pool.ended_jobs["a"].phase is Phase.FAILED


def test_a_job_whose_start_ended_all_executors_too_often_is_not_started_again() -> None:
    node = ExecutorNode().settle().admit().ledger(OTHER_NODE)
    for generation in range(1, 7):  # each executor that ends with all others counts as a crash
        node.place("node-1:0").ledger(
            events.WorkerCrashed(
                job_id="a", generation=generation, node_id="node-1", rank=0, explanation="ended", at_s=NOW_S
            ),
            events.WorkersStopped(job_id="a", generation=generation, node_id="node-1", at_s=NOW_S),
        )
    node.place("node-0:0")
    (failed,) = node.emitted_of(events.JobFailed)
    assert (failed.generation, node.starts) == (7, [])
    assert failed.error.startswith("crashed 6 times in a row")


def test_a_failure_ends_the_job_with_its_traceback() -> None:
    node = ExecutorNode().training(2).reports(Progressed(iteration=40, iterations_per_s=2.0, metrics={}), rank=1)
    node.reports(Failed(error="ValueError: 7", traceback="..."), rank=1)
    assert node.emitted == [
        events.JobFailed(
            job_id="a",
            generation=1,
            error="ValueError: 7",
            traceback="...",
            node_id="node-0",
            incarnation=node.state.incarnation,
            iteration=40,
            at_s=NOW_S,
        )
    ]
    assert node.actions == stops(0, 1, keeps_state=False)
    node.ends(rank=1, code=ExitCode.FAILED).ends(code=ExitCode.PEER_LOST)
    assert kinds(node.emitted[1:]) == [events.WorkersStopped]


def test_a_worker_that_the_jobs_code_ends_crashed_as_it_said() -> None:
    node = ExecutorNode().training(2).reports(Ending(reason="was ended by os._exit(0) at job.py:7"), rank=1)
    assert not node.emitted, "its process has not ended"
    node.ends(rank=1, code=ExitCode.FAILED)
    (crashed,) = node.emitted_of(events.WorkerCrashed)
    assert crashed.explanation == "rank 1 on node-0 was ended by os._exit(0) at job.py:7"


@pytest.mark.parametrize(
    ("end", "explanation"),
    [
        ({"signal": 9}, "rank 1 on node-0 was ended by SIGKILL"),
        ({"signal": 35}, "rank 1 on node-0 was ended by signal 35"),  # of real time: valid, and without a name
        ({"signal": 99}, "rank 1 on node-0 was ended by signal 99"),
        ({"code": ExitCode.PEER_LOST}, "rank 1 on node-0 lost a peer"),
        ({"code": ExitCode.DEVICE_UNUSABLE}, "rank 1 on node-0 cannot use its GPU (its log says why)"),
        (
            {"code": ExitCode.UNREADABLE},
            "rank 1 on node-0 could not read a message of its executor (its log says why)",
        ),
        ({"code": 3}, "rank 1 on node-0 ended with exit code 3"),
    ],
)
def test_a_crash_is_reported_once_and_stops_the_other_workers(end: dict[str, int], explanation: str) -> None:
    node = ExecutorNode().training(2).ends(rank=1, **end)
    assert [event.explanation for event in node.emitted_of(events.WorkerCrashed)] == [explanation]
    assert node.actions == stops(0)
    node.ends(code=ExitCode.PEER_LOST)
    assert len(node.emitted) == 1
    node.place("node-0:0")
    assert kinds(node.emitted[1:]) == [events.WorkersStopped]
    assert [start.worker for start in node.starts] == [WorkerId("a", 2, 0)]


def test_the_end_of_a_failed_or_crashed_workers_log_is_reported() -> None:
    worker = WorkerId("a", 1, 0)
    failing = ExecutorNode().training(1)
    failing.note(WorkerReported(worker=worker, message=Failed(error="E"), last_lines="one\ntwo"))
    (failed,) = failing.emitted_of(events.JobFailed)
    assert failed.last_lines == failing.state.pool.ended_jobs["a"].last_lines == "one\ntwo"
    crashing = ExecutorNode().training(1)
    crashing.note(WorkerEnded(worker=worker, signal=9, last_lines="three"))
    (crashed,) = crashing.emitted_of(events.WorkerCrashed)
    assert crashed.last_lines == "three"


def test_survivors_of_a_crash_have_time_to_write_a_checkpoint() -> None:
    node = ExecutorNode().training(2).ends(rank=0, signal=9)
    assert node.actions == stops(1)
    node.reports(Interrupted(iteration=12), rank=1).at(node.now_s + 5.0)
    assert node.actions == stops(1)
    node.reports(CheckpointWritten(iteration=12), rank=1).ends(rank=1)
    node.place("node-0:0", "node-0:1")
    assert [f.iteration for f in node.emitted_of(events.WorkersStopped)] == [12]
    assert [start.assignment.checkpoint_iteration for start in node.starts] == [12, 12]


def test_a_survivor_that_does_not_notice_a_crash_is_killed_soon() -> None:
    """With NCCL a worker waits for a lost peer inside the GPU."""
    node = ExecutorNode().training(2).reports(Progressed(iteration=5, iterations_per_s=1.0, metrics={}), rank=1)
    node.ends(rank=0, signal=9)
    assert node.policy.wake_at_s(node.state) == node.now_s + 3.0
    node.at(node.now_s + 3.0)
    assert node.actions == [*stops(1), *kills(1)]


def test_the_crash_names_the_worker_that_died_not_the_one_that_lost_it() -> None:
    node = ExecutorNode().training(2)
    for rank, end in ((0, {"exit_code": ExitCode.PEER_LOST}), (1, {"signal": 11})):
        node.state = node.policy.observe(node.state, WorkerEnded(worker=WorkerId("a", 1, rank), **end), node.now_s)
    node.settle()
    assert [event.explanation for event in node.emitted] == ["rank 1 on node-0 was ended by SIGSEGV"]


def test_a_job_that_crashes_again_and_again_fails() -> None:
    node = ExecutorNode().settle().admit()
    for generation in range(1, 7):
        node.place("node-0:0").ends(generation=generation, signal=11)
    assert len(node.emitted_of(events.WorkerCrashed)) == 5
    failed = node.emitted_of(events.JobFailed)
    assert [event.error for event in failed] == [
        "crashed 6 times in a row without a new checkpoint; last: rank 0 on node-0 was ended by SIGSEGV"
    ]


def test_an_exit_with_done_is_a_crash_only_if_no_other_node_has_stopped_the_job() -> None:
    node = ExecutorNode().training(1).ends(code=ExitCode.DONE)
    assert node.emitted == []
    assert node.policy.wake_at_s(node.state) == NOW_S + TIMES.propagation_s
    node.at(NOW_S + TIMES.propagation_s)
    assert kinds(node.emitted) == [events.WorkerCrashed]

    node = ExecutorNode().training(1).ends(code=ExitCode.DONE).place("node-0:1").at(NOW_S + TIMES.propagation_s)
    assert kinds(node.emitted) == [events.WorkersStopped]


# --- profiling runs -------------------------------------------------------------------------------------


def test_a_profiling_run_is_measured_once_and_its_end_is_no_crash() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").forget()
    node.reports(Started(iteration=0)).reports(Profiled(iterations_per_s=2.5, dataset_size=1000)).ends()
    node.at(NOW_S + TIMES.propagation_s)
    assert kinds(node.emitted) == [events.GenerationStarted, events.ThroughputMeasured]
    curve = node.state.pool.curves["unseen/b64"]
    assert (curve.iterations_per_s, curve.dataset_size) == ({1: 2.5}, 1000)
    node.forget().place("node-0:0", "node-0:1")
    starts = [(start.worker.rank, start.assignment.purpose) for start in node.starts]
    assert starts == [(0, "profile"), (1, "profile")]


def test_only_a_pool_of_several_types_measures_step_times() -> None:
    alone = ExecutorNode().settle().profile().forget().place("node-0:0")
    assert [start.assignment.measures_step_times for start in alone.starts] == [False]
    measured = SingleGpuStepTimes(num_virtual_nodes=1, step_s_by_virtual_nodes={1: 0.4}, reproducible="fast")
    node = ExecutorNode().settle()
    node.ledger(*(replace(OTHER_NODE, node_id=f"node-{name}", gpu_type=name) for name in ("V100", "P100"))).profile()
    node.forget().place("node-0:0").reports(Started(iteration=0))
    assert [start.assignment.measures_step_times for start in node.starts] == [True]
    node.reports(Profiled(iterations_per_s=2.5, dataset_size=1000, single_gpu=measured))
    assert node.state.pool.curves["unseen/b64"].single_gpu == measured


def test_the_first_profiling_run_of_a_profile_on_one_gpu_measures_virtual_nodes() -> None:
    node = ExecutorNode().settle().profile().forget().place("node-0:0")
    assert [start.assignment.most_virtual_nodes for start in node.starts] == [8]
    found = VirtualNodeCount(count=4, source="measured")
    node.reports(Started(iteration=0)).reports(Profiled(iterations_per_s=2.5, dataset_size=1000, virtual_nodes=found))
    assert node.state.pool.curves["unseen/b64"].virtual_nodes == found
    node.ends().forget().place("node-0:0", "node-0:1")
    started = [(start.assignment.most_virtual_nodes, start.assignment.plan.num_virtual_nodes) for start in node.starts]
    assert started == [(0, 4), (0, 4)]


@pytest.mark.parametrize(("before", "most"), [(0, 0), (4, 8)])
def test_a_job_that_continues_another_measures_the_virtual_nodes_of_that_one(before: int, most: int) -> None:
    """Those of the default, 0, are not measured: another number would be other bits."""
    node = ExecutorNode().settle().profile()
    job = node.state.pool.live_jobs["a"]
    assert job.spec is not None
    spec = replace(job.spec, continues=ContinuedJob(job_id="b", identity="1" * 16, iteration=9))
    continuing = replace(job, spec=spec, num_virtual_nodes=before)
    pool = replace(node.state.pool, live_jobs=node.state.pool.live_jobs.set("a", continuing))
    node.state = replace(node.state, pool=pool)
    node.forget().place("node-0:0")
    started = [(start.assignment.most_virtual_nodes, start.assignment.plan.num_virtual_nodes) for start in node.starts]
    assert started == [(most, before)]


def test_a_pool_of_more_gpus_measures_more_virtual_nodes_up_to_its_setting() -> None:
    node = ExecutorNode().settle().ledger(replace(OTHER_NODE, num_gpus=44)).profile().forget().place("node-0:0")
    assert [start.assignment.most_virtual_nodes for start in node.starts] == [32]
    for most in (16, 0):
        node = ExecutorNode().settle().ledger(replace(OTHER_NODE, num_gpus=44))
        node.ledger(events.PoolConfigured(config=PoolConfig(most_virtual_nodes=most), at_s=NOW_S))
        node.profile().forget().place("node-0:0")
        assert [start.assignment.most_virtual_nodes for start in node.starts] == [most]


def test_neither_several_gpus_nor_training_nor_a_run_that_crashed_measures_virtual_nodes() -> None:
    node = ExecutorNode().settle().profile().forget().place("node-0:0", "node-0:1")
    assert [start.assignment.most_virtual_nodes for start in node.starts] == [0, 0]
    node = ExecutorNode().settle().admit().forget().place("node-0:0")
    assert [start.assignment.most_virtual_nodes for start in node.starts] == [0]
    node = ExecutorNode().settle().profile().place("node-0:0").ends(signal=9).forget().place("node-0:0")
    assert [start.assignment.most_virtual_nodes for start in node.starts] == [0]


def test_a_profiling_run_that_fails_on_one_type_is_reported_once_and_its_workers_end() -> None:
    node = ExecutorNode().settle()
    node.ledger(*(replace(OTHER_NODE, node_id=f"node-{name}", gpu_type=name) for name in ("V100", "P100"))).profile()
    node.place("node-0:0").reports(Started(iteration=0)).forget()
    node.reports(Failed(error="no memory")).settle()
    assert [(type(event), event.gpu_type) for event in node.emitted] == [(events.ProfilingFailed, "")]
    assert node.state.pool.live_jobs["a"].broken
    assert node.actions == kills(0)
    node.ends(code=ExitCode.FAILED).at(NOW_S + TIMES.profiling_timeout_s)
    assert kinds(node.emitted) == [events.ProfilingFailed]


def test_a_profiling_run_that_is_replaced_is_killed_at_once() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").reports(Started(iteration=0)).forget().place()
    assert node.actions == kills(0)


def test_the_heartbeat_reports_the_progress_of_a_profiling_run() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").reports(Started(iteration=0))
    node.reports(Progressed(iteration=4, iterations_per_s=None, metrics={}))
    (worker,) = node_report(node.state, NOW_S + 1.0).workers
    assert (worker.job_id, worker.iteration) == ("a", 4)


def test_a_profiling_run_that_hangs_fails_its_job() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").forget()
    assert node.policy.wake_at_s(node.state) == NOW_S + TIMES.profiling_timeout_s
    node.at(NOW_S + TIMES.profiling_timeout_s)
    assert kinds(node.emitted) == [events.JobFailed]
    assert node.actions == kills(0)


def test_a_profiling_run_has_time_for_the_installation_of_its_packages() -> None:
    node = ExecutorNode().settle().profile(requirements=("einops",)).place("node-0:0")
    timeout_s = TIMES.profiling_timeout_s + node.state.pool.config.prepare_timeout_s
    assert node.policy.wake_at_s(node.state) == NOW_S + timeout_s
