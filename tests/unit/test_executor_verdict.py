"""Given how its workers ended, the executor of node-0 tells this of their job."""

import pytest

from services.executor.notes import (
    Ended,
    KillWorker,
    StartWorker,
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
    Profiled,
    Progressed,
    Started,
)
from shared.messages.job_state import Phase
from tests.executor_node import KILL_A1, STOP_A1, ExecutorNode, kinds
from tests.histories import NOW_S

TIMES = DetectionTimes()

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
        (
            {"code": ExitCode.UNREADABLE},
            "rank 1 on node-0 could not read what its executor said (its log says why)",
        ),
        ({"code": 3}, "rank 1 on node-0 ended with exit code 3"),
    ],
)
def test_a_crash_is_told_once_and_ends_the_other_workers(end: dict[str, int], explanation: str) -> None:
    node = ExecutorNode().training(2).ends(rank=1, **end)
    assert [fact.explanation for fact in node.told_of(events.WorkerCrashed)] == [explanation]
    assert node.acted == [STOP_A1]
    node.ends(code=ExitCode.PEER_LOST)
    assert len(node.told) == 1
    node.place("node-0:0")
    assert kinds(node.told[1:]) == [events.WorkersStopped]
    assert [a.worker for a in node.acted[1:]] == [WorkerId("a", 2, 0)]


def test_who_survives_a_crash_has_time_to_keep_what_was_done() -> None:
    node = ExecutorNode().training(2).ends(rank=0, signal=9)
    assert node.acted == [STOP_A1]
    node.says(Interrupted(iteration=12), rank=1).at(node.now_s + 5.0)
    assert node.acted == [STOP_A1]
    node.says(Checkpointed(iteration=12), rank=1).ends(rank=1)
    node.place("node-0:0", "node-0:1")
    assert [f.iteration for f in node.told_of(events.WorkersStopped)] == [12]
    assert [a.checkpoint_iteration for a in node.acted if isinstance(a, StartWorker)] == [12, 12]


def test_who_does_not_notice_a_crash_is_killed_soon() -> None:
    """NCCL waits for a lost peer inside the GPU."""
    node = ExecutorNode().training(2).says(Progressed(iteration=5, iterations_per_s=1.0, metrics={}), rank=1)
    node.ends(rank=0, signal=9)
    assert node.policy.wake_at_s(node.state) == node.now_s + 3.0
    node.at(node.now_s + 3.0)
    assert node.acted == [STOP_A1, KillWorker(worker=WorkerId("a", 1, 1))]


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
    assert node.policy.wake_at_s(node.state) == NOW_S + TIMES.word_s
    node.at(NOW_S + TIMES.word_s)
    assert kinds(node.told) == [events.WorkerCrashed]

    node = ExecutorNode().training(1).ends(code=ExitCode.DONE).place("node-0:1").at(NOW_S + TIMES.word_s)
    assert kinds(node.told) == [events.WorkersStopped]


# --- pre-runs -------------------------------------------------------------------------------------------


def test_a_pre_run_is_measured_once_and_its_end_is_no_crash() -> None:
    node = ExecutorNode().settle().profile().place("node-0:0").forget()
    node.says(Started(iteration=0)).says(Profiled(iterations_per_s=2.5, dataset_size=1000)).ends()
    node.at(NOW_S + TIMES.word_s)
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
    assert node.policy.wake_at_s(node.state) == NOW_S + TIMES.pre_run_s
    node.at(NOW_S + TIMES.pre_run_s)
    assert kinds(node.told) == [events.JobFailed]
    assert node.acted == [KILL_A1]
