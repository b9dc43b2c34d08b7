"""The executor on a bus: it joins, runs placements, loses contact, is replaced, shuts down. Workers are fakes."""

import asyncio
import contextlib
import hashlib
import os
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from elasticflow.services.executor.processes.code_archive import CodeArchive, CodeUnusable
from elasticflow.services.executor.processes.fork_server_client import Exited
from elasticflow.services.executor.service import serve
from elasticflow.services.executor.settings import ExecutorSettings
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    Progressed,
    RendezvousListening,
    Started,
    Switched,
)
from elasticflow.shared.messages.worker_protocol.to_worker import (
    Assignment,
    JoinRendezvous,
    LeaseExtended,
    PrepareSwitch,
    StopAtBoundary,
)
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.process.settings import Settings
from elasticflow.shared.runtime.service.ledger_bookmark import LedgerBookmark
from elasticflow.shared.runtime.service.run_service import Process
from testbed.histories import NOW_S
from testbed.hostile_archives import HOSTILE_ARCHIVES, TOO_LARGE, packed
from testbed.planned_ledger import PATIENCE_S, POOL, Ledger
from tests.support.job_files import keep_files

TIMELINE = ResizeTimeline(prepare_s=0.5, stop_s=0.01, first_step_s=0.1, bytes_moved=1000)


class FakeWorker:
    """Trains once all workers have met; stops on request, with a checkpoint of 5 iterations."""

    def __init__(self, assignment: Assignment, launcher: "FakeLauncher") -> None:
        self.assignment, self.pid, self.exited = assignment, 1, False
        self.log_file = Path(os.devnull)  # it has no process that writes
        self.order: PrepareSwitch | None = None
        self._launcher = launcher
        if assignment.rank == 0 and assignment.plan.world_size > 1:
            self._report_soon(RendezvousListening(generation=assignment.plan.generation, port=4000))
        if assignment.plan.world_size == 1 and not assignment.plan.rendezvous_size:
            self._report_soon(Started(iteration=0), Progressed(iteration=1, iterations_per_s=2.0))

    def send(self, message: Any) -> None:
        match message:
            case JoinRendezvous():
                self._launcher.addresses.append(message.address)
                for worker in self._launcher.running:
                    worker._begin()
            case PrepareSwitch():
                self.order = message
                if message.rendezvous_rank == 0:
                    self._report_soon(RendezvousListening(generation=message.plan.generation, port=5000))
            case StopAtBoundary():
                self._report_soon(CheckpointWritten(iteration=5), Exited(code=0, signal=None))
            case LeaseExtended():
                pass
            case _:
                raise AssertionError(message)

    def _begin(self) -> None:
        """Start with all others, join, switch or leave."""
        order, is_joining = self.order, self.assignment.plan.rendezvous_size > 0
        if order is None:
            self._report_soon(Started(iteration=0, resize=TIMELINE if is_joining else None))
        elif order.rendezvous_rank >= order.plan.world_size:
            self._report_soon(Exited(code=0, signal=None))
        else:
            generation, rank = order.plan.generation, order.rendezvous_rank
            self._report_soon(Switched(generation=generation, rank=rank, iteration=7, resize=TIMELINE))

    def kill(self) -> None:
        self._report_soon(Exited(code=None, signal=9))

    def _report_soon(self, *messages: Any) -> None:
        for message in messages:
            asyncio.get_running_loop().call_soon(self._report, message)

    def _report(self, message: Any) -> None:
        if not self.exited:
            self.exited = isinstance(message, Exited)
            self._launcher.on_event(self, message)


class FakeLauncher:
    """on_event: set by its executor."""

    def __init__(self) -> None:
        self.workers: list[FakeWorker] = []
        self.addresses: list[str] = []
        self.fails_with: Exception | None = None  # instead of starting a worker
        self.on_event: Callable[[Any, Any], None]

    @property
    def running(self) -> list[FakeWorker]:
        return [worker for worker in self.workers if not worker.exited]

    def made(self, on_event: Callable[[Any, Any], None]) -> Any:
        self.on_event = on_event
        return self

    async def start(self) -> None:
        pass

    async def launch(self, assignment: Assignment) -> FakeWorker:
        if self.fails_with is not None:
            raise self.fails_with
        worker = FakeWorker(assignment, self)
        self.workers.append(worker)  # in any order
        self.workers.sort(key=lambda each: (each.assignment.plan.generation, each.assignment.rank))
        return worker

    async def close(self) -> None:
        for worker in self.running:
            worker.kill()
        await asyncio.sleep(0)


Run = Callable[..., Awaitable[tuple["asyncio.Task[None]", FakeLauncher]]]


@pytest.fixture
async def run(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """Starts an executor of node-0 on the bus, as in its own process; all end with the test."""
    described = {"EF_RACK": "r7", "EF_GPU_TYPE": "T4", "EF_GPU_MEMORY_BYTES": str(16 << 30)}
    for name, value in {"EF_NODE_ID": "node-0", "EF_SLOTS": "4", "EF_DEVICE": "cpu", **described}.items():
        monkeypatch.setenv(name, value)
    running: list[asyncio.Task[None]] = []

    async def run(*, data_dir: Path = tmp_path) -> tuple["asyncio.Task[None]", FakeLauncher]:
        settings = Settings.from_environment({"EF_POOL": POOL, "EF_DATA_DIR": str(data_dir)})
        process = Process(
            settings=settings,
            bus=bus,  # type: ignore[arg-type]
            clock=SystemClock(),
            log=get_log("executor"),
            metrics=Metrics("executor", POOL),
        )
        launcher = FakeLauncher()
        executor_settings = ExecutorSettings.from_environment(settings.nats_url)
        task = asyncio.create_task(serve(process, settings=executor_settings, make_launcher=launcher.made))
        running.append(task)
        return task, launcher

    yield run
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def ended(task: "asyncio.Task[None]") -> None:
    """End the executor as SIGTERM does."""
    task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_an_executor_from_joining_to_shutdown(bus: Bus, run: Run, tmp_path: Path) -> None:
    task, launcher = await run()
    ledger = Ledger(bus)
    joined = await ledger.until_received(events.NodeJoined)
    assert (joined.node_id, joined.num_gpus, joined.device) == ("node-0", 4, "cpu")
    assert (joined.sockets, joined.rack) == (1, "r7")
    assert (joined.gpu_type, joined.gpu_memory_bytes) == ("T4", 16 << 30)
    await ledger.place("a", 1, "node-0:2", "node-0:3")
    await ledger.until(lambda pool: "a" in pool.live_jobs and pool.live_jobs["a"].training)
    assert launcher.addresses == ["127.0.0.1:4000"]
    assignment = launcher.workers[0].assignment
    assert (assignment.gpu_index, assignment.plan.world_size) == (2, 2)
    assert assignment.checkpoint_dir == str(tmp_path / "checkpoints" / "a")
    await ledger.place("a", 2, "node-0:0")
    await ledger.until(lambda pool: pool.live_jobs["a"].generation == 2 and pool.live_jobs["a"].training)
    assert ledger.state.live_jobs["a"].checkpoint_iteration == 5
    await ended(task)
    left = await ledger.until_received(events.NodeLost)
    assert (left.incarnation, left.reason) == (joined.incarnation, "left")
    assert [event.iteration for event in ledger.received if isinstance(event, events.WorkersStopped)] == [5]
    assert not launcher.running


async def test_an_executor_that_ends_while_it_joins_leaves_the_pool(
    bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM arrives while `NodeJoined` is on its way to the server, which stores it."""
    joins, arrives, append = asyncio.Event(), asyncio.Event(), bus.append

    async def arriving_late(subject: str, data: bytes, **conditions: Any) -> int:
        if isinstance(codec.decode(data).message, events.NodeJoined):
            joins.set()
            await arrives.wait()
        return await append(subject, data, **conditions)

    async def sent(subject: str, data: bytes, **conditions: Any) -> int:
        return await asyncio.shield(asyncio.ensure_future(arriving_late(subject, data, **conditions)))

    monkeypatch.setattr(bus, "append", sent)
    task, _ = await run()
    async with asyncio.timeout(PATIENCE_S):
        await joins.wait()
    task.cancel()
    arrives.set()
    await ended(task)
    ledger = Ledger(bus)
    joined = await ledger.until_received(events.NodeJoined)
    left = await ledger.until_received(events.NodeLost)
    assert (left.incarnation, left.reason) == (joined.incarnation, "left")


async def test_a_node_remembers_the_ledger_and_reports_an_older_one_at_each_start(
    bus: Bus, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = CapturingLogger()
    monkeypatch.setattr(f"{__name__}.get_log", lambda _: said)
    file = LedgerBookmark.of_reader(tmp_path, POOL, "node-0").file
    task, _ = await run()
    await Ledger(bus).until_received(events.NodeJoined)
    async with asyncio.timeout(PATIENCE_S):
        while not file.exists():  # noqa: ASYNC110 - a file can only be polled
            await asyncio.sleep(0.01)
    await ended(task)
    file.write_text('{"sequence": 1000, "message": ""}')
    await run()
    async with asyncio.timeout(PATIENCE_S):
        while not (reports := [call for call in said.calls if call.args == ("LedgerIsOlder",)]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "this machine has read it up to 1000" in reports[0].kwargs["problem"]
    assert "1000" in file.read_text()


async def test_a_node_names_the_jobs_whose_files_it_has_and_that_the_ledger_does_not_know(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = CapturingLogger()
    monkeypatch.setattr(f"{__name__}.get_log", lambda _: said)
    keep_files(tmp_path, "lost", "0123456789abcdef")
    await run()
    async with asyncio.timeout(PATIENCE_S):
        while not (reports := [call for call in said.calls if call.args == ("JobsUnknown",)]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "has files of a job that the ledger does not know (lost)" in reports[0].kwargs["problem"]


async def test_a_worker_switches_and_another_joins_it(bus: Bus, run: Run) -> None:
    task, launcher = await run()
    ledger = Ledger(bus)
    await ledger.plan(events.PoolConfigured(config=PoolConfig(stop_free=True), at_s=NOW_S))
    await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:1")
    await ledger.until_received(events.GenerationStarted)
    await ledger.place("a", 2, "node-0:1", "node-0:3")
    started = await ledger.until_received(events.GenerationStarted, count=2)
    assert (started.generation, started.iteration, started.resize) == (2, 7, TIMELINE)
    staying, joining = launcher.workers
    assert (staying.assignment.plan.generation, staying.assignment.rank) == (2, 0)
    assert (joining.assignment.plan.rendezvous_size, joining.assignment.gpu_index) == (2, 3)
    assert launcher.addresses == ["127.0.0.1:5000"]
    await ended(task)
    await ledger.until_received(events.NodeLost)
    assert len(launcher.workers) == 2
    assert not launcher.running


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
async def test_a_worker_that_reports_a_switch_that_it_was_not_sent_is_killed(bus: Bus, run: Run) -> None:
    """Otherwise it would speak for the worker of another rank."""
    task, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0", "node-0:1")
    await ledger.until_received(events.GenerationStarted)
    forging = launcher.workers[0]
    launcher.on_event(forging, Switched(generation=1, rank=1, iteration=7, resize=TIMELINE))
    crashed = await ledger.until_received(events.WorkerCrashed)
    assert (crashed.rank, forging.exited, task.done()) == (0, True, False)


async def test_heartbeats_report_training_workers(bus: Bus, run: Run) -> None:
    heartbeats = await bus.subscribe(subjects.telemetry(POOL, "node-0"))
    await run()
    ledger = Ledger(bus)
    joined = await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    async with asyncio.timeout(PATIENCE_S):
        async for message in heartbeats:
            heartbeat = codec.decode(message.data).message
            assert isinstance(heartbeat, events.NodeReported)
            assert heartbeat.incarnation == joined.incarnation
            if heartbeat.workers and heartbeat.workers[0].iteration == 1:
                break
    await heartbeats.close()


async def test_a_node_counted_as_lost_joins_as_another_incarnation(bus: Bus, run: Run) -> None:
    _, launcher = await run()
    ledger = Ledger(bus)
    joined = await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    await ledger.until_received(events.GenerationStarted)
    await ledger.append(events.NodeLost(node_id="node-0", incarnation=joined.incarnation, reason="silent", at_s=NOW_S))
    again = await ledger.until_received(events.NodeJoined, count=2)
    assert again.incarnation != joined.incarnation
    assert not launcher.running
    await ledger.place("a", 2, "node-0:0")
    await ledger.until_received(events.GenerationStarted, count=2)


async def test_a_node_name_belongs_to_one_executor(bus: Bus, run: Run, tmp_path: Path) -> None:
    first, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    await ledger.until_received(events.GenerationStarted)
    second, _ = await run()
    with pytest.raises(BadSettings, match="already runs here"):
        await second
    third, _ = await run(data_dir=tmp_path / "another-machine")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BadSettings, match="another executor of this name is alive: stop it, or give"):
            await third
    assert not first.done()
    assert len(launcher.running) == 1
    await ledger.until(lambda pool: pool.live_jobs["a"].training)
    assert len([event for event in ledger.received if isinstance(event, events.NodeJoined)]) == 1


async def test_an_executor_that_was_killed_is_replaced_on_another_machine(bus: Bus, run: Run, tmp_path: Path) -> None:
    """No executor ran there before: it waits until no worker of the first can have a lease."""
    ledger = Ledger(bus)
    await ledger.plan(events.PoolConfigured(config=PoolConfig(heartbeat_timeout_s=1.0), at_s=NOW_S))
    dead = events.NodeReported(node_id="node-0", incarnation="killed-0", at_s=NOW_S, lease_s=0.5)
    data = codec.encode(dead, id="", recorded_at_s=NOW_S)
    await bus.put_value(streams.node_bucket(POOL), "node-0", data)
    await run()
    joined = await ledger.until_received(events.NodeJoined)
    assert joined.incarnation != "killed-0"
    await ledger.place("a", 1, "node-0:0")
    await ledger.until_received(events.GenerationStarted)


async def test_an_executor_that_another_one_replaced_kills_its_workers_and_ends(bus: Bus, run: Run) -> None:
    first, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    await ledger.until_received(events.GenerationStarted)
    other = events.NodeJoined(node_id="node-0", incarnation="other-0", num_gpus=1, device="cpu", at_s=NOW_S)
    await ledger.append(other)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BadSettings, match="another executor has joined under this name"):
            await first
    assert not launcher.running


@pytest.mark.parametrize("connect", ["nats"], indirect=True)
async def test_without_contact_to_nats_the_workers_are_killed(bus: Bus, run: Run, nats_server: EmbeddedServer) -> None:
    _, launcher = await run()
    ledger = Ledger(bus)
    await ledger.plan(events.PoolConfigured(config=PoolConfig(heartbeat_timeout_s=1.0), at_s=NOW_S))
    await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    await ledger.until_received(events.GenerationStarted)
    nats_server.kill()
    async with asyncio.timeout(PATIENCE_S):
        while launcher.running:  # noqa: ASYNC110 - a fake worker reports to its executor only
            await asyncio.sleep(0.02)
    nats_server.start()
    crashed = await ledger.until_received(events.WorkerCrashed)
    assert "NATS was out of reach" in crashed.explanation
    await ledger.place("a", 2, "node-0:0")
    await ledger.until_received(events.GenerationStarted, count=2)


# --- code -----------------------------------------------------------------------------------------------


def archive(**files: str) -> tuple[str, bytes]:
    data = packed(lambda to: [to.writestr(f"{name}.py", text) for name, text in files.items()])
    return hashlib.sha256(data).hexdigest(), data


async def test_code_is_unpacked_once_for_executors_with_one_folder(bus: Bus, tmp_path: Path) -> None:
    digest, data = archive(mine="ANSWER = 42")
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", digest), data)
    archives = [CodeArchive(bus, POOL, tmp_path) for _ in range(3)]
    folders = await asyncio.gather(*(archives[n % 3].folder("lab", digest) for n in range(6)))
    assert set(folders) == {str(tmp_path / "code" / "lab" / digest)}
    assert (Path(folders[0]) / "mine.py").read_text() == "ANSWER = 42"
    assert [path.name for path in (tmp_path / "code" / "lab").iterdir()] == [digest]
    assert await archives[0].folder("lab", "") == ""


async def test_the_digest_of_another_tenants_code_is_no_right_to_it(bus: Bus, tmp_path: Path) -> None:
    digest, data = archive(mine="ANSWER = 42")
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", digest), data)
    code = CodeArchive(bus, POOL, tmp_path, upload_wait_s=0.0)
    assert await code.folder("lab", digest)
    with pytest.raises(CodeUnusable, match="not uploaded"):
        await code.folder("thief", digest)


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
async def test_a_tenant_whose_code_does_not_arrive_delays_no_other_with_the_same_digest(
    bus: Bus, tmp_path: Path
) -> None:
    digest, data = archive(mine="ANSWER = 42")
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", digest), data)
    code = CodeArchive(bus, POOL, tmp_path, upload_wait_s=600.0)
    waiting = asyncio.create_task(code.folder("thief", digest))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        assert await code.folder("lab", digest)
    assert not waiting.done()
    waiting.cancel()


async def test_a_link_in_an_archive_becomes_a_file(bus: Bus, tmp_path: Path) -> None:
    link = zipfile.ZipInfo("mine.py")
    link.external_attr = 0o120777 << 16
    data = packed(lambda to: to.writestr(link, "/etc/passwd"))
    digest = hashlib.sha256(data).hexdigest()
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", digest), data)
    mine = Path(await CodeArchive(bus, POOL, tmp_path).folder("lab", digest)) / "mine.py"
    assert (mine.is_symlink(), mine.read_text()) == (False, "/etc/passwd")


async def test_the_archive_waits_for_code_that_is_uploaded_late(bus: Bus, tmp_path: Path) -> None:
    digest, data = archive(mine="")
    fetching = asyncio.create_task(CodeArchive(bus, POOL, tmp_path).folder("lab", digest))
    await asyncio.sleep(0)
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", digest), data)
    assert await fetching


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "not uploaded"),
        (b"something else", "corrupt"),
        (b"no archive", "cannot be unpacked"),
        (TOO_LARGE, "more than"),
    ],
)
async def test_unusable_code_leaves_no_file_behind(bus: Bus, tmp_path: Path, data: bytes | None, problem: str) -> None:
    digest = hashlib.sha256(b"no archive").hexdigest()
    if data is not None:
        await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", digest), data)
    with pytest.raises(CodeUnusable, match=problem):
        await CodeArchive(bus, POOL, tmp_path, upload_wait_s=0.0).folder("lab", digest)
    assert not [path for path in tmp_path.rglob("*") if path.parent.name == "lab"]  # noqa: ASYNC240


async def test_a_job_whose_code_is_not_an_archive_fails(bus: Bus, run: Run) -> None:
    data = b"no archive"
    digest = hashlib.sha256(data).hexdigest()
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", digest), data)
    _, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0", code_digest=digest)
    failed = await ledger.until_received(events.JobFailed)
    assert "cannot be unpacked" in failed.error
    await ledger.until_received(events.WorkersStopped)
    assert launcher.workers == []


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
@pytest.mark.parametrize("name", HOSTILE_ARCHIVES)
async def test_a_hostile_archive_fails_its_job_and_nothing_else(bus: Bus, run: Run, name: str) -> None:
    data = HOSTILE_ARCHIVES[name]
    digest = hashlib.sha256(data).hexdigest()
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", digest), data)
    task, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_received(events.NodeJoined)
    await ledger.place("neighbour", 1, "node-0:1")
    await ledger.until_received(events.GenerationStarted)
    await ledger.place("a", 1, "node-0:0", code_digest=digest)
    failed = await ledger.until_received(events.JobFailed)
    assert failed.job_id == "a"
    assert "cannot be unpacked" in failed.error
    await ledger.until_received(events.WorkersStopped)
    assert not task.done(), "the executor goes on"
    assert [worker.assignment.job_id for worker in launcher.running] == ["neighbour"]


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
@pytest.mark.parametrize("more", ["", "x" * 60_000], ids=["", "at length"])  # as the name of a file in an archive
async def test_a_worker_that_cannot_be_started_for_an_unforeseen_reason_fails_its_job(
    bus: Bus, run: Run, more: str
) -> None:
    task, launcher = await run()
    launcher.fails_with = RecursionError(f"too deep{more}")
    ledger = Ledger(bus)
    await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    failed = await ledger.until_received(events.JobFailed)
    assert "RecursionError: too deep" in failed.error
    assert not task.done()


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
async def test_a_worker_that_ends_by_a_signal_of_real_time_ends_neither_executor_nor_neighbour(
    bus: Bus, run: Run
) -> None:
    """Such a signal has no name. With namespaces, an exit code above 128 is taken for one."""
    task, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_received(events.NodeJoined)
    await ledger.place("neighbour", 1, "node-0:1")
    await ledger.place("a", 1, "node-0:0")
    await ledger.until_received(events.GenerationStarted, count=2)
    (worker,) = (each for each in launcher.running if each.assignment.job_id == "a")
    worker._report_soon(Exited(code=None, signal=35))
    crashed = await ledger.until_received(events.WorkerCrashed)
    assert (crashed.job_id, crashed.explanation) == ("a", "rank 0 on node-0 was ended by signal 35")
    assert not task.done()
    assert [each.assignment.job_id for each in launcher.running] == ["neighbour"]


async def test_a_job_cancelled_before_its_code_arrives_starts_no_worker(bus: Bus, run: Run) -> None:
    _, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_received(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0", code_digest="0" * 64)
    await ledger.plan(events.JobCancelled(job_id="a", reason="", at_s=NOW_S))
    await ledger.until_received(events.WorkersStopped)
    assert launcher.workers == []
