"""Reports and errors of `eflow up` before any process runs."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticflow.local import supervisor
from elasticflow.local.supervisor import Supervisor, compile_scheduler
from elasticflow.local.up_plan import UpPlan
from elasticflow.shared.errors import CannotStart, ElasticFlowError, StorageFull
from elasticflow.shared.messages.pool_config import PoolConfig
from tests.support.error_codes import coded


@pytest.mark.parametrize(
    ("num_nodes", "reserve", "is_said"),
    [(None, 2, True), (None, 1, False), (1, 1, True), (3, 2, False), (0, 2, False)],
)
async def test_a_reserve_that_leaves_no_node_is_reported(
    num_nodes: int | None, reserve: int, is_said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def configured(*_: Any, **__: Any) -> PoolConfig:
        return PoolConfig(reserve_nodes=reserve)

    async def run_nothing(*_: Any) -> None: ...

    monkeypatch.setattr(supervisor, "configure", configured)
    monkeypatch.setattr(Supervisor, "_compare_ledger", run_nothing)
    monkeypatch.setattr(supervisor.machine_code, "is_complete", lambda: True)
    monkeypatch.setattr(Supervisor, "_supervise", run_nothing)
    said: list[str] = []
    plan = UpPlan(data_dir=tmp_path, nats_url="nats://nowhere", device="cpu", num_nodes=num_nodes)
    await Supervisor(plan, said.append).run(lambda run: None)
    assert any(f"the reserve of {reserve} holds back all" in line for line in said) == is_said
    assert any("a CPU slot may allocate" in line for line in said) == (num_nodes != 0), "its limit is said"


@pytest.mark.parametrize(("nats_url", "code"), [("", "unusable_folder"), ("nats://elsewhere", "storage_full")])
async def test_a_full_disk_is_named_if_the_server_is_ours(
    nats_url: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any, **__: Any) -> PoolConfig:
        raise StorageFull("EF_SUBMIT_default", "insufficient storage resources available")

    class Server:
        url = "nats://here"

        def __init__(self, *_: Any, **__: Any) -> None: ...
        def start(self) -> None: ...
        def stop(self) -> None: ...

    monkeypatch.setattr(supervisor, "configure", refused)
    monkeypatch.setattr(supervisor, "EmbeddedServer", Server)
    monkeypatch.setattr(supervisor.machine_code, "is_complete", lambda: True)
    plan = UpPlan(data_dir=tmp_path, nats_url=nats_url, device="cpu")
    with pytest.raises(ElasticFlowError, match="insufficient storage", check=coded(code)):
        await Supervisor(plan, lambda line: None).run(lambda run: None)


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
    with pytest.raises(CannotStart, match="no compiler for this processor", check=coded("process_failed")) as failed:
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
