"""Compilation before the services start: reported if it takes long, named if it fails, killed if cancelled."""

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from elasticflow.errors import StartFailed
from elasticflow.local.supervisor import compile_scheduler

LONG_S = 60.0


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


async def test_a_compilation_is_reported_only_if_it_takes_long(tmp_path: Path) -> None:
    log_file, said_so = tmp_path / "services" / "compilation.log", tmp_path / "said"
    reports: list[str] = []
    await compile_scheduler(os.environ, log_file, reports.append, command=python(""), report_after_s=LONG_S)
    assert reports == []

    def report(line: str) -> None:
        reports.append(line)
        said_so.touch()

    until_reported = f"import os, time\nwhile not os.path.exists({str(said_so)!r}): time.sleep(0.01)"
    await compile_scheduler(os.environ, log_file, report, command=python(until_reported), report_after_s=0.0)
    assert reports == ["compiling the scheduler, once for this installation: about 20 s"]


async def test_a_failure_is_raised_with_its_reason_and_log(tmp_path: Path) -> None:
    log_file = tmp_path / "compilation.log"
    command = python("raise SystemExit('no compiler for this processor')")
    with pytest.raises(StartFailed, match="no compiler for this processor") as failed:
        await compile_scheduler(os.environ, log_file, print, command=command)
    assert str(log_file) in str(failed.value)


async def test_a_cancelled_compilation_leaves_no_process(tmp_path: Path) -> None:
    log_file = tmp_path / "compilation.log"
    command = python("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    compiling = asyncio.create_task(compile_scheduler(os.environ, log_file, print, command=command))
    while not (log_file.exists() and log_file.read_text().endswith("\n")):  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.01)
    compiling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compiling
    assert not psutil.pid_exists(int(log_file.read_text()))
