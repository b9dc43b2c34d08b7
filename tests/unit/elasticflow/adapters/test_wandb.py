"""One run a job in Weights & Biases, on a module that takes what the library takes."""

import fcntl
import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from elasticflow.adapters import wandb as adapter
from elasticflow.adapters.tracking import Point
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.training_interface import RunningJob


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def init(**settings: Any) -> Any:
        calls.append(("init", settings))
        return SimpleNamespace(
            log=lambda data, step: calls.append(("log", step, data)),
            mark_preempting=lambda: calls.append(("preempting",)),
            finish=lambda exit_code: calls.append(("finish", exit_code)),
        )

    def find(path: str) -> Any:
        if not path.endswith("a" * 16):
            raise ValueError(f"Could not find run <Run {path}>")
        return SimpleNamespace(summary=SimpleNamespace(update=lambda words: calls.append(("summary", path, words))))

    module = ModuleType("wandb")
    vars(module).update(
        init=init, Settings=lambda **of: of, Api=lambda: SimpleNamespace(run=find, default_entity="ann")
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(adapter, "require_extra", lambda *_: None)
    return calls


def job(tmp_path: Path, **more: Any) -> RunningJob:
    spec = JobSpec(training_function="digits:Digits", global_batch_size=32, max_iterations=10, sweep="rates")
    return RunningJob(
        spec=spec, folder=tmp_path, **{"job_id": "digits", "identity": "a" * 16, "deadline_s": 0.0} | more
    )


def test_leaders_one_after_another_resume_one_run(calls: list[Any], tmp_path: Path) -> None:
    for iteration, has_finished in ((1, False), (2, True)):
        run = adapter._WandbRun("digits", "", job(tmp_path))
        run.write([Point(at_s=1.0, iteration=iteration, metrics={"loss": 0.5})])
        run.close(has_finished=has_finished)
    inits = [settings for name, *settings in calls if name == "init"]
    assert [(each["id"], each["resume"], each["group"], each["name"]) for (each,) in inits] == [
        ("a" * 16, "allow", "rates", "digits")
    ] * 2
    assert inits[0][0]["config"]["elasticflow.deadline"] == "1970-01-01T00:00:00+00:00"
    assert [call for call in calls if call[0] != "init"] == [
        ("log", 1, {"loss": 0.5}),
        ("preempting",),
        ("finish", 1),
        ("log", 2, {"loss": 0.5}),
        ("finish", 0),
    ]


def test_the_next_leader_waits_until_the_run_is_closed(calls: list[Any], tmp_path: Path) -> None:
    held = os.open(tmp_path / adapter._LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)  # as the process before
    opened = threading.Thread(target=lambda: adapter._WandbRun("", "", job(tmp_path)).close(has_finished=True))
    opened.start()
    opened.join(0.2)
    assert (opened.is_alive(), calls) == (True, [])
    os.close(held)
    opened.join(60)
    assert [name for name, *_ in calls] == ["init", "finish"]


def test_a_process_that_reads_samples_does_not_keep_the_next_leader_waiting(calls: list[Any], tmp_path: Path) -> None:
    """It is forked from the leader, and so has its files, and lives on when another process leads."""
    run = adapter._WandbRun("", "", job(tmp_path))
    of_reader = os.dup(run._lock)
    run.close(has_finished=False)
    next_leader = os.open(tmp_path / adapter._LOCK, os.O_RDWR)
    fcntl.flock(next_leader, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for each in (of_reader, next_leader):
        os.close(each)


@pytest.mark.usefixtures("calls")
def test_a_run_that_cannot_be_opened_is_not_kept_from_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(**_: Any) -> None:
        os.dup(max(int(fd) for fd in os.listdir("/proc/self/fd") if is_lock(fd)))  # a reader is forked
        raise ConnectionError

    def is_lock(fd: str) -> bool:
        return os.path.realpath(f"/proc/self/fd/{fd}").endswith(adapter._LOCK)

    monkeypatch.setattr(sys.modules["wandb"], "init", fail)
    with pytest.raises(ConnectionError):
        adapter._WandbRun("", "", job(tmp_path))
    with (tmp_path / adapter._LOCK).open("r+") as next_attempt:
        fcntl.flock(next_attempt, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for fd in filter(is_lock, os.listdir("/proc/self/fd")):
        os.close(int(fd))


def test_a_local_run_has_no_id(calls: list[Any], tmp_path: Path) -> None:
    adapter._WandbRun("", "", job(tmp_path, identity="")).close(has_finished=True)
    assert (calls[0][1]["id"], calls[0][1]["resume"]) == (None, None)


def test_what_the_pool_knows_is_in_the_summary(calls: list[Any]) -> None:
    runs = adapter.WandbRuns("digits")
    assert runs.write("a" * 16, {"promise": "kept"}, "finished")
    assert not runs.write("b" * 16, {"promise": "kept"}, "finished")
    assert calls == [("summary", f"ann/digits/{'a' * 16}", {"elasticflow.promise": "kept"})]
