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
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.service.ledger_bookmark import LedgerBookmark
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from testbed.histories import NOW_S, History
from tests.support.error_codes import coded
from tests.support.job_files import keep_files
from tests.support.shared_pool import next_of
from tests.support.worker_events import admitted


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


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UpPlan:
    """Of a pool without processes, on a server elsewhere."""

    async def configured(*_: Any, **__: Any) -> PoolConfig:
        return PoolConfig()

    async def run_nothing(*_: Any) -> None: ...

    monkeypatch.setattr(supervisor, "configure", configured)
    monkeypatch.setattr(supervisor.machine_code, "is_complete", lambda: True)
    monkeypatch.setattr(Supervisor, "_supervise", run_nothing)
    return UpPlan(data_dir=tmp_path, nats_url="nats://nowhere", device="cpu", num_nodes=0)


class Said(list[str]):
    """The reports of `eflow up`. any: once there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.any = asyncio.Event()

    def append(self, line: str) -> None:
        super().append(line)
        self.any.set()


async def test_a_ledger_that_is_read_for_long_is_said_to_be_waited_for(
    plan: UpPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, waits = Said(), True

    async def compared(*_: Any) -> None:
        if waits:
            await said.any.wait()

    monkeypatch.setattr(Supervisor, "_compare_ledger", compared)
    monkeypatch.setattr(supervisor, "_WAIT_REPORTED_S", 0.0)
    await Supervisor(plan, said.append).run(lambda run: None)
    assert said == ["waiting for the ledger of pool default, which is read"]
    said.clear()
    waits = False
    await Supervisor(plan, said.append).run(lambda run: None)
    await asyncio.sleep(0.01)
    assert said == [], "what is there at once is not waited for"


async def test_a_process_that_is_not_healthy_for_long_is_said_to_be_waited_for_with_its_log(
    plan: UpPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Child:
        """Healthy at once, or once its wait was reported."""

        num_failures = 0

        def __init__(self, name: str, *, waits: bool) -> None:
            self.name, self.log_file, self._waits = name, Path(f"{name}.log"), waits

        async def is_healthy(self) -> bool:
            if self._waits:
                await said.any.wait()
            return True

    said = Said()
    starting = Supervisor(plan, said.append)
    children: Any = [Child("admission", waits=False), Child("executor-0", waits=True), Child("monitor", waits=False)]
    starting._children = children
    monkeypatch.setattr(supervisor, "_WAIT_REPORTED_S", 0.0)
    await starting._until_healthy()
    await asyncio.sleep(0.01)
    assert said == ["waiting for executor-0 to be healthy (its log: executor-0.log)"]


@pytest.mark.parametrize(
    ("kept", "warning"),
    [
        ((), None),
        (("files of a known job",), None),
        (("files of an unknown job",), "has files of a job that the ledger does not know (lost): NATS has older data"),
        (("bookmark",), None),
        (("later bookmark",), "ends at message 1, but this machine has read it up to 7: NATS has older data"),
        (("bookmark", "files of an unknown job"), None),
        (("later bookmark", "files of an unknown job"), "ends at message 1, but this machine has read it up to 7"),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, tuple) else "",
)
async def test_a_ledger_that_is_not_that_of_this_machine_is_reported(
    kept: tuple[str, ...], warning: str | None, plan: UpPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookmark says more than files: these may be of a job that the ledger has had and lost."""
    bus = MemoryBus()
    await bus.ensure_pool(plan.pool)
    decision = PlanDecided(service="admission", based_on=0, now_s=NOW_S, events=(admitted("known"),))
    data = codec.encode(decision, id="decision", recorded_at_s=NOW_S)
    await bus.append(subjects.plan(plan.pool), data, message_id="decision")
    closed: list[bool] = []

    async def connected(url: str, **_: Any) -> MemoryBus:
        assert url == plan.nats_url
        return bus

    async def closing() -> None:
        closed.append(True)

    monkeypatch.setattr(supervisor, "connect_nats", connected)
    monkeypatch.setattr(bus, "close", closing)
    for each in kept:
        match each:
            case "bookmark":
                record = await next_of(bus.read(plan.pool, after_sequence=0, up_to=1))
                LedgerBookmark.of_reader(plan.data_dir, plan.pool, "node-0").move(record[0])
            case "later bookmark":
                file = LedgerBookmark.of_reader(plan.data_dir, plan.pool, "node-0").file
                file.parent.mkdir(parents=True)
                file.write_text('{"sequence": 7, "message": ""}')
            case "files of a known job":
                keep_files(plan.data_dir, "known", History().then(admitted("known")).state.live_jobs["known"].identity)
            case _:
                keep_files(plan.data_dir, "lost", "0123456789abcdef")
    said: list[str] = []
    await Supervisor(plan, said.append).run(lambda run: None)
    assert [warning is not None and warning in line for line in said] == ([True] if warning else [])
    assert all(line.startswith("warning: ") for line in said)
    assert closed == [True]


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
