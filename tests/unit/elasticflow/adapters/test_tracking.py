"""A tracker never holds the training, and its run has each iteration once, whatever becomes of the process."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from elasticflow.adapters import tracking
from elasticflow.adapters.tracking import NUM_GPUS, Journal, Point, Refused, Tracker, parameters_of, sink_of
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.training_interface import RunningJob, show_job


class FakeRun:
    """Keeps what it gets. fails: raised by each write, until it is None."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.fails: Exception | None = None
        self.closed: list[bool] = []
        self.changed = threading.Condition()

    def write(self, points: Sequence[Point]) -> None:
        with self.changed:
            self.changed.notify_all()
            if self.fails is not None:
                raise self.fails
            self.points += points

    def close(self, *, has_finished: bool) -> None:
        with self.changed:
            self.closed.append(has_finished)
            self.changed.notify_all()

    def wait_for(self, condition) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 60)

    @property
    def iterations(self) -> list[int]:
        return [point.iteration for point in self.points]


def spec(**more) -> JobSpec:
    given = {"training_function": "digits:Digits", "global_batch_size": 32, "max_iterations": 100}
    return JobSpec(**{**given, **more})


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningJob:
    monkeypatch.setattr(tracking, "INTERVAL_S", 0.01)
    monkeypatch.setattr(tracking, "require_extra", lambda *_: None)
    monkeypatch.setattr("elasticflow.shared.training_interface._running", [])
    job = RunningJob(
        job_id="digits", identity="f" * 16, spec=spec(), deadline_s=None, folder=tmp_path, num_gpus=2, leads=True
    )
    show_job(job)
    return job


def test_the_run_gets_each_iteration_with_the_number_of_gpus(job: RunningJob) -> None:
    run = FakeRun()
    tracker = Tracker("mlflow", lambda _: run)
    tracker(1, {"loss": 0.5})
    job.num_gpus = 4
    tracker(2, {"loss": 0.25})
    job.has_finished = True
    run.wait_for(lambda: run.closed)
    assert [(point.iteration, point.metrics) for point in run.points] == [
        (1, {"loss": 0.5, NUM_GPUS: 2.0}),
        (2, {"loss": 0.25, NUM_GPUS: 4.0}),
    ]
    assert run.closed == [True]
    assert [*job.folder.rglob("*.jsonl")] == []


def test_what_a_library_notes_of_an_iteration_comes_with_it(job: RunningJob) -> None:
    run = FakeRun()
    tracker = Tracker("mlflow", lambda _: run)
    tracker.note(1, {"learning_rate": 0.1})
    tracker.note(1, {"eval_loss": 2, "name": "none"})
    tracker(1, {"loss": 0.5})
    tracker.note(1, {"learning_rate": 0.1})  # trained again, and not fed again
    tracker(2, {"loss": 0.25})
    run.wait_for(lambda: len(run.points) == 2)
    assert [sorted(point.metrics) for point in run.points] == [
        ["eval_loss", "learning_rate", "loss", NUM_GPUS],
        ["loss", NUM_GPUS],
    ]


def test_a_service_that_does_not_answer_holds_no_iteration(job: RunningJob) -> None:
    """And the queue is bounded."""
    answers = threading.Event()
    run = FakeRun()

    def open_run(_: RunningJob) -> FakeRun:
        answers.wait()
        return run

    tracker = Tracker("mlflow", open_run)
    last = 3 * tracking.MAX_QUEUED
    for iteration in range(1, last + 1):
        tracker(iteration, {"loss": 1.0})
    assert tracker._sender is not None
    assert len(tracker._sender._queued) <= tracking.MAX_QUEUED
    answers.set()
    job.has_finished = True
    run.wait_for(lambda: run.closed)
    assert run.iterations == sorted(set(run.iterations))
    assert (run.iterations[0], last - run.iterations[-1] < 2) == (1, True)
    gaps = [after - before for before, after in zip(run.iterations, run.iterations[1:], strict=False)]
    assert max(gaps) <= 16, "each second iteration is dropped, again and again, but never a whole period"


def test_an_outage_is_named_once_and_its_iterations_follow(job: RunningJob, caplog: pytest.LogCaptureFixture) -> None:
    run = FakeRun()
    run.fails = ConnectionError("away")
    tracker = Tracker("mlflow", lambda _: run)
    tracker(1, {"loss": 0.5})
    for _ in range(3):
        run.wait_for(lambda: True)
        with run.changed:
            run.changed.wait(60)
    tracker(2, {"loss": 0.25})
    run.fails = None
    run.wait_for(lambda: len(run.points) == 2)
    job.has_finished = True
    run.wait_for(lambda: run.closed)
    assert run.iterations == [1, 2]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "Tracker: the training goes on, and its metrics wait: ConnectionError: away",
        "Tracker: the metrics are written again",
    ]


def test_what_the_service_refuses_is_named_and_not_repeated(job: RunningJob, caplog: pytest.LogCaptureFixture) -> None:
    run = FakeRun()
    run.fails = Refused("no such metric")
    tracker = Tracker("mlflow", lambda _: run)
    tracker(1, {"loss": 0.5})
    run.wait_for(lambda: any("refuses the iterations from 1 on: no such metric" in each for each in caplog.messages))
    run.fails = None
    tracker(2, {"loss": 0.25})
    run.wait_for(lambda: run.points)
    assert run.iterations == [2]


def test_a_process_that_ends_waits_for_its_queue_but_for_no_service_that_is_away(
    job: RunningJob, caplog: pytest.LogCaptureFixture
) -> None:
    run = FakeRun()
    tracker = Tracker("mlflow", lambda _: run)
    tracker(1, {"loss": 0.5})
    assert tracker._sender is not None
    tracker._sender.end()
    assert (run.iterations, run.closed) == ([1], [False])
    run.fails = ConnectionError("away")
    tracker(2, {"loss": 0.5})  # of a sender of its own
    run.wait_for(lambda: any("ConnectionError" in each for each in caplog.messages))
    job.has_finished = True
    tracker._sender.end()
    assert caplog.messages[-1] == "Tracker: the run lacks 1 iteration, which the service did not take in time"


def test_a_process_that_leads_no_more_closes_the_run_and_opens_it_again(job: RunningJob) -> None:
    runs: list[FakeRun] = []

    def open_run(_: RunningJob) -> FakeRun:
        runs.append(FakeRun())
        return runs[-1]

    tracker = Tracker("mlflow", open_run)
    tracker(1, {"loss": 0.5})
    assert tracker._sender is not None
    job.leads = False
    tracker._sender._thread.join(60)
    job.leads = True
    tracker(2, {"loss": 0.25})
    job.has_finished = True
    tracker._sender._thread.join(60)
    assert [(run.iterations, run.closed) for run in runs] == [([1], [False]), ([2], [True])]


def _write_and_be_killed(folder: Path) -> None:
    Journal(folder).add([Point(at_s=1.0, iteration=n, metrics={"loss": 0.5}) for n in (1, 2)])
    os.kill(os.getpid(), signal.SIGKILL)


def _write_and_wait(folder: Path, ready, ends) -> None:
    Journal(folder).add([Point(at_s=1.0, iteration=7, metrics={})])
    ready.set()
    ends.wait()


def test_the_next_leader_takes_over_what_a_killed_one_had_queued(job: RunningJob) -> None:
    """But nothing of a process that lives, and no half line."""
    folder = job.folder / f"tracked-Tracker-{job.identity}"
    context = multiprocessing.get_context("spawn")
    killed = context.Process(target=_write_and_be_killed, args=(folder,))
    killed.start()
    killed.join()
    (file,) = folder.iterdir()
    with file.open("a") as journal:
        journal.write('{"at_s": 3.0, "iterat')
    ready, ends = context.Event(), context.Event()
    alive = context.Process(target=_write_and_wait, args=(folder, ready, ends))
    alive.start()
    ready.wait()
    run = FakeRun()
    tracker = Tracker("mlflow", lambda _: run)
    tracker(3, {"loss": 0.25})
    job.has_finished = True
    run.wait_for(lambda: run.closed)
    ends.set()
    alive.join()
    assert run.iterations == [1, 2, 3]
    assert run.points[0] == Point(at_s=1.0, iteration=1, metrics={"loss": 0.5})


def test_a_job_takes_nothing_over_from_an_earlier_one_with_its_name(job: RunningJob) -> None:
    context = multiprocessing.get_context("spawn")
    killed = context.Process(target=_write_and_be_killed, args=(job.folder / f"tracked-Tracker-{'e' * 16}",))
    killed.start()
    killed.join()
    run = FakeRun()
    tracker = Tracker("mlflow", lambda _: run)
    tracker(1, {"loss": 0.25})
    job.has_finished = True
    run.wait_for(lambda: run.closed)
    assert [point.metrics["loss"] for point in run.points] == [0.25]


def test_a_full_disk_loses_the_journal_only(job: RunningJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_) -> None:
        raise OSError("full")

    monkeypatch.setattr(tracking.os, "open", full)
    run = FakeRun()
    Tracker("mlflow", lambda _: run)(1, {"loss": 0.5})
    run.wait_for(lambda: run.points)


def test_a_sink_outside_of_a_job_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticflow.shared.training_interface._running", [])
    with pytest.raises(RuntimeError, match="is a sink of a job"):
        Tracker("mlflow", lambda _: FakeRun())(1, {"loss": 0.5})


def test_the_parameters_of_a_script_have_the_names_of_its_options() -> None:
    arguments = ("--lr", "0.1", "--fast", "--wd=0.2", "data.csv", "--last")
    script = spec(
        training_function="train:__main__",
        hyperparameters={str(n): each for n, each in enumerate(arguments, 1)},
        swept={"lr": 0.1},
    )
    assert parameters_of(script) == {
        "global_batch_size": "32",
        "max_iterations": "100",
        "seed": "0",
        "lr": "0.1",
        "fast": "true",
        "wd": "0.2",
        "argument_5": "data.csv",
        "last": "true",
    }
    assert parameters_of(spec(hyperparameters={"learning_rate": 0.5}))["learning_rate"] == "0.5"


def test_several_sinks_are_all_called() -> None:
    called: list[int] = []

    def fail(iteration: int, metrics: object) -> None:
        raise ConnectionError("away")

    both = sink_of([fail, lambda iteration, _: called.append(iteration)])
    assert both is not None
    with pytest.raises(ConnectionError):
        both(3, {})
    assert called == [3]
    assert sink_of([]) is None
