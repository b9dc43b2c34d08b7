"""Stacks and commands of a worker: the files that come with a message, and how a command ends."""

import os
import socket
import threading
from pathlib import Path

import pytest

from elasticflow.services.executor.worker.process.commands import run_command, write_stacks
from elasticflow.services.executor.worker.process.log_file import keep_flight_records_beside
from elasticflow.shared.messages.worker_protocol.frames import FrameReader
from elasticflow.shared.messages.worker_protocol.to_worker import CommandResult, RunCommand


def result_of(command: tuple[str, ...], *, closed: bool = False) -> tuple[CommandResult, bytes]:
    """The result, and what the command has written. closed: its executor is gone."""
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    files = [os.open(os.devnull, os.O_RDONLY), writing, os.dup(writing), theirs.detach()]
    with ours:
        if closed:
            ours.shutdown(socket.SHUT_WR)
        run_command(RunCommand(command=command), files)
        with os.fdopen(reading, "rb") as output:
            written = output.read()
        (result,) = FrameReader(CommandResult).feed(ours.recv(65_536))
        assert ours.recv(1) == b"", "it has closed its files"
    return result, written


def test_a_command_has_the_environment_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_JOB", "yes")
    result, written = result_of(("sh", "-c", "echo $OF_THE_JOB; exit 3"))
    assert (result, written) == (CommandResult(status=3), b"yes\n")


def test_a_command_that_cannot_be_started_says_why() -> None:
    result, written = result_of(("/no/such/program",))
    assert (result, written) == (CommandResult(error="/no/such/program: No such file or directory"), b"")


def test_a_command_with_its_children_is_killed_when_its_executor_is_gone() -> None:
    result, written = result_of(("sh", "-c", "sleep 600 & wait"), closed=True)
    assert (result.status, written) == (-9, b"")


def test_the_stacks_name_the_threads(capfd: pytest.CaptureFixture[str]) -> None:
    waits = threading.Event()
    thread = threading.Thread(target=waits.wait, name="a thread of the user", daemon=True)
    thread.start()
    reading, writing = os.pipe()
    write_stacks([writing])
    with os.fdopen(reading, "rb") as read:
        text = read.read().decode()
    waits.set()
    thread.join()
    assert '"a thread of the user"' in text
    assert "test_commands.py" in text
    assert "eflow stack has asked" in capfd.readouterr().err


def test_flight_records_lie_beside_the_log_unless_the_job_names_another_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/elsewhere/trace_")
    monkeypatch.delenv("TORCH_FR_DUMP_TEMP_FILE", raising=False)
    keep_flight_records_beside(tmp_path / "g2-r1.log")
    assert os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/elsewhere/trace_"
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "g2-r1.nccl_trace_")
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", "")
