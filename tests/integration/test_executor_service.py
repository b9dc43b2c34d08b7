"""The executor on a bus: joins, makes placements true, is cut off, is replaced, leaves. Workers are scripted."""

import asyncio
import contextlib
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.executor.code_archive import CodeArchive, CodeUnusable
from services.executor.fork_server import Exited
from services.executor.service import serve
from services.executor.settings import ExecutorSettings
from shared.errors import BadSettings
from shared.messages import codec, events, subjects
from shared.messages.cluster import PoolConfig
from shared.messages.from_worker import Checkpointed, Progressed, RendezvousListening, Started, Switched
from shared.messages.resize_timeline import ResizeTimeline
from shared.messages.to_worker import (
    Assignment,
    ChangeMembership,
    JoinRendezvous,
    LeaseExtended,
    StopAtBoundary,
)
from shared.runtime import streams
from shared.runtime.bus import Bus
from shared.runtime.clock import SystemClock
from shared.runtime.logs import get_log
from shared.runtime.nats_server import EmbeddedServer
from shared.runtime.service import Process
from shared.runtime.settings import Settings
from shared.runtime.telemetry import Metrics
from tests.histories import NOW_S
from tests.planned_ledger import PATIENCE_S, POOL, Ledger

TIMELINE = ResizeTimeline(prepare_s=0.5, stop_s=0.01, first_step_s=0.1, bytes_moved=1000)


class FakeWorker:
    """Trains as soon as it has met its peers; stops when asked, with a checkpoint of 5 iterations."""

    def __init__(self, assignment: Assignment, launcher: "FakeLauncher") -> None:
        self.assignment, self.pid, self.exited = assignment, 1, False
        self.change: ChangeMembership | None = None
        self._launcher = launcher
        if assignment.rank == 0 and assignment.world_size > 1:
            self._later(RendezvousListening(generation=assignment.generation, port=4000))
        if assignment.world_size == 1 and not assignment.meeting_size:
            self._later(Started(iteration=0), Progressed(iteration=1, iterations_per_s=2.0))

    def send(self, message: Any) -> None:
        match message:
            case JoinRendezvous():
                self._launcher.addresses.append(message.address)
                for worker in self._launcher.running:
                    worker._begin()
            case ChangeMembership():
                self.change = message
                if message.place == 0:
                    self._later(RendezvousListening(generation=message.generation, port=5000))
            case StopAtBoundary():
                self._later(Checkpointed(iteration=5), Exited(code=0, signal=None))
            case LeaseExtended():
                pass
            case _:
                raise AssertionError(message)

    def _begin(self) -> None:
        """With all others, or with those that go over to its generation, of which it may be one."""
        change, joins = self.change, self.assignment.meeting_size > 0
        if change is None:
            self._later(Started(iteration=0, resize=TIMELINE if joins else None))
        elif change.place >= change.world_size:
            self._later(Exited(code=0, signal=None))
        else:
            generation, rank = change.generation, change.place
            self._later(Switched(generation=generation, rank=rank, iteration=7, resize=TIMELINE))

    def kill(self) -> None:
        self._later(Exited(code=None, signal=9))

    def _later(self, *messages: Any) -> None:
        for message in messages:
            asyncio.get_running_loop().call_soon(self._say, message)

    def _say(self, message: Any) -> None:
        if not self.exited:
            self.exited = isinstance(message, Exited)
            self._launcher.on_event(self, message)


class FakeLauncher:
    """on_event: set by the executor that it is made for."""

    def __init__(self) -> None:
        self.workers: list[FakeWorker] = []
        self.addresses: list[str] = []
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
        worker = FakeWorker(assignment, self)
        self.workers.append(worker)
        return worker

    async def close(self) -> None:
        for worker in self.running:
            worker.kill()
        await asyncio.sleep(0)


Run = Callable[..., Awaitable[tuple["asyncio.Task[None]", FakeLauncher]]]


@pytest.fixture
async def run(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """Starts an executor of node-0 on the bus, as a process of its own would run; all are ended at the end."""
    for name, value in {"EF_NODE_ID": "node-0", "EF_SLOTS": "4", "EF_DEVICE": "cpu", "EF_RACK": "r7"}.items():
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
        offered = ExecutorSettings.from_environment(settings.nats_url)
        task = asyncio.create_task(serve(process, settings=offered, make_launcher=launcher.made))
        running.append(task)
        return task, launcher

    yield run
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def ended(task: "asyncio.Task[None]") -> None:
    """As after SIGTERM."""
    task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_from_joining_to_leaving(bus: Bus, run: Run, tmp_path: Path) -> None:
    task, launcher = await run()
    ledger = Ledger(bus)
    joined = await ledger.until_told(events.NodeJoined)
    assert (joined.node_id, joined.num_gpus, joined.device) == ("node-0", 4, "cpu")
    assert (joined.sockets, joined.rack) == (1, "r7")
    await ledger.place("a", 1, "node-0:2", "node-0:3")
    await ledger.until(lambda pool: "a" in pool.live_jobs and pool.live_jobs["a"].training)
    assert launcher.addresses == ["127.0.0.1:4000"]
    assignment = launcher.workers[0].assignment
    assert (assignment.gpu_index, assignment.world_size) == (2, 2)
    assert assignment.checkpoint_dir == str(tmp_path / "checkpoints" / "a")
    await ledger.place("a", 2, "node-0:0")
    await ledger.until(lambda pool: pool.live_jobs["a"].generation == 2 and pool.live_jobs["a"].training)
    assert ledger.state.live_jobs["a"].checkpoint_iteration == 5
    await ended(task)
    left = await ledger.until_told(events.NodeLost)
    assert (left.incarnation, left.reason) == (joined.incarnation, "left")
    assert [fact.iteration for fact in ledger.told if isinstance(fact, events.WorkersStopped)] == [5]
    assert not launcher.running


async def test_workers_go_over_to_another_generation_under_their_own_feet(bus: Bus, run: Run) -> None:
    task, launcher = await run()
    ledger = Ledger(bus)
    await ledger.plan(events.PoolConfigured(config=PoolConfig(stop_free=True), at_s=NOW_S))
    await ledger.until_told(events.NodeJoined)
    await ledger.place("a", 1, "node-0:1")
    await ledger.until_told(events.GenerationStarted)
    await ledger.place("a", 2, "node-0:1", "node-0:3")
    started = await ledger.until_told(events.GenerationStarted, count=2)
    assert (started.generation, started.iteration, started.resize) == (2, 7, TIMELINE)
    incumbent, newcomer = launcher.workers
    assert (incumbent.assignment.generation, incumbent.assignment.rank) == (2, 0)
    assert (newcomer.assignment.meeting_size, newcomer.assignment.gpu_index) == (2, 3)
    assert launcher.addresses == ["127.0.0.1:5000"]
    await ended(task)
    await ledger.until_told(events.NodeLost)
    assert len(launcher.workers) == 2
    assert not launcher.running


async def test_heartbeats_say_who_trains(bus: Bus, run: Run) -> None:
    heartbeats = await bus.subscribe(subjects.telemetry(POOL, "node-0"))
    await run()
    ledger = Ledger(bus)
    joined = await ledger.until_told(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    async with asyncio.timeout(PATIENCE_S):
        async for message in heartbeats:
            heartbeat = codec.decode(message.data).message
            assert isinstance(heartbeat, events.NodeReported)
            assert heartbeat.incarnation == joined.incarnation
            if heartbeat.workers and heartbeat.workers[0].iteration == 1:
                break
    await heartbeats.close()


async def test_a_node_counted_as_lost_comes_back_as_another(bus: Bus, run: Run) -> None:
    _, launcher = await run()
    ledger = Ledger(bus)
    joined = await ledger.until_told(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    await ledger.until_told(events.GenerationStarted)
    await ledger.tell(
        events.NodeLost(node_id="node-0", incarnation=joined.incarnation, reason="silent", at_s=NOW_S)
    )
    again = await ledger.until_told(events.NodeJoined, count=2)
    assert again.incarnation != joined.incarnation
    assert not launcher.running
    await ledger.place("a", 2, "node-0:0")
    await ledger.until_told(events.GenerationStarted, count=2)


async def test_one_name_one_executor(bus: Bus, run: Run, tmp_path: Path) -> None:
    first, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_told(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    await ledger.until_told(events.GenerationStarted)
    second, _ = await run()
    with pytest.raises(BadSettings, match="runs here already"):
        await second
    await run(data_dir=tmp_path / "another-machine")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BadSettings, match="another executor has joined under this name"):
            await first
    assert not launcher.running


@pytest.mark.parametrize("connect", ["nats"], indirect=True)
async def test_out_of_reach_the_workers_end_by_themselves(
    bus: Bus, run: Run, nats_server: EmbeddedServer
) -> None:
    _, launcher = await run()
    ledger = Ledger(bus)
    await ledger.plan(events.PoolConfigured(config=PoolConfig(heartbeat_timeout_s=1.0), at_s=NOW_S))
    await ledger.until_told(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0")
    await ledger.until_told(events.GenerationStarted)
    nats_server.kill()
    async with asyncio.timeout(PATIENCE_S):
        while launcher.running:  # noqa: ASYNC110 - a fake worker tells its executor only
            await asyncio.sleep(0.02)
    nats_server.start()
    crashed = await ledger.until_told(events.WorkerCrashed)
    assert "NATS was out of reach" in crashed.explanation
    await ledger.place("a", 2, "node-0:0")
    await ledger.until_told(events.GenerationStarted, count=2)


# --- code -----------------------------------------------------------------------------------------------


def archive(**files: str) -> tuple[str, bytes]:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as packed:
        for name, text in files.items():
            packed.writestr(f"{name}.py", text)
    return hashlib.sha256(data.getvalue()).hexdigest(), data.getvalue()


async def test_code_is_unpacked_once_for_all_who_share_the_folder(bus: Bus, tmp_path: Path) -> None:
    digest, data = archive(mine="ANSWER = 42")
    await bus.put_object(streams.code_bucket(POOL), digest, data)
    archives = [CodeArchive(bus, POOL, tmp_path) for _ in range(3)]
    folders = await asyncio.gather(*(archives[n % 3].folder(digest) for n in range(6)))
    assert set(folders) == {str(tmp_path / "code" / digest)}
    assert (Path(folders[0]) / "mine.py").read_text() == "ANSWER = 42"
    assert [path.name for path in (tmp_path / "code").iterdir()] == [digest]
    assert await archives[0].folder("") == ""


async def test_code_that_arrives_late_is_waited_for(bus: Bus, tmp_path: Path) -> None:
    digest, data = archive(mine="")
    fetching = asyncio.create_task(CodeArchive(bus, POOL, tmp_path).folder(digest))
    await asyncio.sleep(0)
    await bus.put_object(streams.code_bucket(POOL), digest, data)
    assert await fetching


@pytest.mark.parametrize(
    ("data", "problem"),
    [(None, "never uploaded"), (b"something else", "another file"), (b"no archive", "no archive")],
)
async def test_code_that_cannot_be_used_leaves_nothing_behind(
    bus: Bus, tmp_path: Path, data: bytes | None, problem: str
) -> None:
    digest = hashlib.sha256(b"no archive").hexdigest()
    if data is not None:
        await bus.put_object(streams.code_bucket(POOL), digest, data)
    with pytest.raises(CodeUnusable, match=problem):
        await CodeArchive(bus, POOL, tmp_path, upload_wait_s=0.0).folder(digest)
    assert not [path for path in tmp_path.rglob("*") if path.parent.name == "code"]  # noqa: ASYNC240


async def test_a_job_whose_code_is_no_archive_fails(bus: Bus, run: Run) -> None:
    data = b"no archive"
    digest = hashlib.sha256(data).hexdigest()
    await bus.put_object(streams.code_bucket(POOL), digest, data)
    _, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_told(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0", code_digest=digest)
    failed = await ledger.until_told(events.JobFailed)
    assert "no archive that can be unpacked" in failed.error
    await ledger.until_told(events.WorkersStopped)
    assert launcher.workers == []


async def test_a_job_that_ends_while_its_code_is_awaited_is_given_up(bus: Bus, run: Run) -> None:
    _, launcher = await run()
    ledger = Ledger(bus)
    await ledger.until_told(events.NodeJoined)
    await ledger.place("a", 1, "node-0:0", code_digest="0" * 64)
    await ledger.plan(events.JobCancelled(job_id="a", reason="", at_s=NOW_S))
    await ledger.until_told(events.WorkersStopped)
    assert launcher.workers == []
