"""The manager prepares workers, gives them the secrets of their generations, and says what it prepares."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from elasticflow.services.executor.decisions.local_events_and_actions import (
    KillWorker,
    LocalEvent,
    SendToWorker,
    StartWorker,
    WorkerId,
    WorkerReported,
)
from elasticflow.services.executor.processes import manager as manager_module
from elasticflow.services.executor.processes.fork_server_client import Exited
from elasticflow.services.executor.processes.job_environments import JobEnvironments
from elasticflow.services.executor.processes.launcher import OnEvent
from elasticflow.services.executor.processes.manager import GenerationSecrets, WorkerManager
from elasticflow.services.executor.processes.prepared_folders import CannotPrepare, FetchedData, InstalledPackages
from elasticflow.shared.messages.events.nodes import KnownStarts
from elasticflow.shared.messages.job_environment import OwnEnvironment
from elasticflow.shared.messages.job_spec import ContinuedJob, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.timeouts import CHECKPOINT_WAIT_S
from elasticflow.shared.messages.worker_protocol.from_worker import Alive, CheckpointWritten, Failed, Switched
from elasticflow.shared.messages.worker_protocol.to_worker import (
    Assignment,
    GenerationPlan,
    PrepareSwitch,
    StopAtBoundary,
)
from elasticflow.shared.runtime.process.secret_sealing import SecretKeys
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import spec
from tests.support.executor_node import TIMELINE

SECRETS = GenerationSecrets(b"of the pool")


class Worker:
    """A handle that keeps what it is sent."""

    pid, log_file = 1, Path("absent.log")

    def __init__(self, assignment: Assignment) -> None:
        self.assignment, self.sent = assignment, list[Any]()

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Launcher:
    """Also the store of code."""

    def __init__(self) -> None:
        self.launched: asyncio.Queue[Worker] = asyncio.Queue()

    def made(self, on_event: OnEvent) -> Any:
        self.on_event = on_event
        return self

    async def launch(self, assignment: Assignment) -> Worker:
        await self.launched.put(worker := Worker(assignment))
        return worker

    async def folder(self, tenant: str, digest: str) -> str:
        return ""


async def gpu_left(gpu_index: int) -> None:
    pass


async def at_once() -> None:
    pass


def manager_of(
    launcher: Any,
    data_dir: Path,
    note: Callable[[LocalEvent], None] = lambda _: None,
    announced: Callable[[], Awaitable[None]] = at_once,
    copies: Any = None,
) -> WorkerManager:
    return WorkerManager(
        launcher,
        gpu_left=gpu_left,
        announced=announced,
        make_launcher=launcher.made,
        note=note,
        shut_down=lambda _: None,
        log=SilentLog(),
        data_dir=data_dir,
        secret_keys=SecretKeys(),
        generation_secrets=SECRETS,
        copies=copies,
    )


async def test_nothing_is_done_for_a_job_before_the_pool_knows_that_its_start_begins(tmp_path: Path) -> None:
    """Its code may end the executor, or the machine: the start then counts as lost."""
    launcher, announced, folders = Launcher(), asyncio.Event(), list[str]()

    async def folder(tenant: str, digest: str) -> str:
        folders.append(tenant)
        return ""

    async def wait() -> None:
        await announced.wait()

    launcher.folder = folder  # pyright: ignore[reportAttributeAccessIssue]
    manager = manager_of(launcher, tmp_path, announced=wait)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    plan = GenerationPlan(generation=3, world_size=1)
    assignment = Assignment(job_id="a", plan=plan, rank=0, spec=spec(), checkpoint_dir="unused")
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (folders, launcher.launched.qsize()) == ([], 0)
    announced.set()
    await launcher.launched.get()
    assert folders == ["lab"]
    running.cancel()
    await asyncio.wait({running})


async def test_a_start_is_a_preparation_until_the_pool_knows_that_its_worker_runs(tmp_path: Path) -> None:
    """Who is lost before loses no start: no code of the job has run there."""
    launcher, named = Launcher(), list[tuple[KnownStarts, int]]()
    start = ("a", 3)

    async def note() -> None:
        named.append((manager.preparations((start,)), launcher.launched.qsize()))

    manager = manager_of(launcher, tmp_path, announced=note)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    plan = GenerationPlan(generation=3, world_size=1)
    assignment = Assignment(job_id="a", plan=plan, rank=0, spec=spec(), checkpoint_dir="unused")
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    await launcher.launched.get()
    assert named == [((start,), 0), ((), 0)]
    assert manager.preparations((start, ("b", 1))) == (("b", 1),)
    manager.preparations(())
    assert manager.preparations((start,)) == (start,), "what no heartbeat names any more is forgotten"
    running.cancel()
    await asyncio.wait({running})


async def test_a_worker_gets_the_secrets_of_its_generations(tmp_path: Path) -> None:
    launcher = Launcher()
    manager = manager_of(launcher, tmp_path)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    assignment = Assignment(
        job_id="a",
        plan=GenerationPlan(generation=3, world_size=2),
        rank=0,
        spec=spec(),
        checkpoint_dir="unused",
    )
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    switch = PrepareSwitch(
        plan=GenerationPlan(generation=4, world_size=3, rendezvous_size=3),
        rendezvous_rank=0,
    )
    manager.act(SendToWorker(worker=WorkerId("a", 3, 0), message=switch))
    worker = await launcher.launched.get()
    await asyncio.sleep(0)
    assert worker.assignment.plan.secret == SECRETS.of("a", 3)
    (sent,) = (message for message in worker.sent if isinstance(message, PrepareSwitch))
    assert sent.plan.secret == SECRETS.of("a", 4)
    assert sent.plan.secret not in f"{sent}{worker.assignment}", "they are logged"
    running.cancel()
    await asyncio.wait({running})


async def test_the_last_lines_of_a_failed_worker_are_noted_without_its_secrets(tmp_path: Path) -> None:
    noted, launcher = list[LocalEvent](), Launcher()
    manager_of(launcher, tmp_path, noted.append)
    assignment = Assignment(
        job_id="a",
        plan=GenerationPlan(generation=3, world_size=1),
        rank=0,
        spec=spec(),
        checkpoint_dir="unused",
        secrets={"TOKEN": "hidden"},
    )
    worker: Any = Worker(assignment)
    worker.log_file = tmp_path / "log"
    worker.log_file.write_text("the token is hidden\n")
    launcher.on_event(worker, Failed(error="refused"))
    assert [event.last_lines for event in noted if isinstance(event, WorkerReported)] == ["the token is ***"]


async def test_a_worker_that_forges_switches_is_killed_with_one_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, killed, launcher = list[str](), list[int](), Launcher()
    monkeypatch.setattr(SilentLog, "error", lambda self, event, **keys: lines.append(event))
    monkeypatch.setattr(Worker, "kill", lambda self: killed.append(self.pid), raising=False)
    manager = manager_of(launcher, tmp_path)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    assignment = Assignment(
        job_id="a", plan=GenerationPlan(generation=3, world_size=1), rank=0, spec=spec(), checkpoint_dir="unused"
    )
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    worker: Any = await launcher.launched.get()
    for _ in range(50):
        await asyncio.sleep(0)
        launcher.on_event(worker, Switched(generation=4, rank=0, iteration=7, resize=TIMELINE))
    assert killed
    assert lines == ["WorkerKilled"]
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize("ends", ["installed", "unusable", "killed", "stopped"])
async def test_the_manager_says_which_jobs_wait_for_packages(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, installed, within = asyncio.Event(), asyncio.Event(), list[float]()

    async def folder(packages: InstalledPackages, tenant: str, requirements: Any, *, within_s: float) -> str:
        within.append(within_s)
        begun.set()
        await installed.wait()
        if ends == "unusable":
            raise CannotPrepare("no such package")
        return "packages"

    monkeypatch.setattr(InstalledPackages, "folder", folder)
    launcher, noted = Launcher(), asyncio.Queue[LocalEvent]()
    manager = manager_of(launcher, tmp_path, noted.put_nowait)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    needs = spec(requirements=("einops",))
    timeouts = PoolConfig(prepare_timeout_s=300.0).timeouts_of(needs)
    for rank in range(2):
        assignment = Assignment(
            job_id="a",
            plan=GenerationPlan(generation=1, world_size=2),
            rank=rank,
            spec=needs,
            checkpoint_dir="unused",
            timeouts=timeouts,
        )
        manager.act(StartWorker(assignment=assignment, tenant="lab"))
    await begun.wait()
    assert manager.preparing == ("a",)
    if ends in ("killed", "stopped"):  # without a process, both are one
        for rank in range(2):
            worker = WorkerId("a", 1, rank)
            stop = SendToWorker(worker=worker, message=StopAtBoundary())
            manager.act(stop if ends == "stopped" else KillWorker(worker=worker))
    installed.set()
    for _ in range(2):
        await (launcher.launched if ends == "installed" else noted).get()
    for _ in range(3):
        await asyncio.sleep(0)
    assert (manager.preparing, within) == ((), [300.0, 300.0])
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize(
    ("needs", "phase", "shown"),
    [
        (spec(requirements=("einops",)), "fetching its packages and data", ("packages", "")),
        (spec(own_environment=OwnEnvironment(python="3.12")), "making its environment", ("", "environment")),
    ],
)
async def test_a_start_that_waits_for_packages_says_so_once_it_takes_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: JobSpec, phase: str, shown: tuple[str, str]
) -> None:
    told = asyncio.Event()

    async def packages(_: InstalledPackages, tenant: str, requirements: Any, *, within_s: float) -> str:
        await told.wait()
        return "packages" if requirements else ""

    async def environment(_: JobEnvironments, tenant: str, wanted: Any, *, within_s: float) -> str:
        await told.wait()
        return "environment" if wanted else ""

    monkeypatch.setattr(InstalledPackages, "folder", packages)
    monkeypatch.setattr(JobEnvironments, "folder", environment)
    monkeypatch.setattr(manager_module, "PHASE_S", 0.01)
    launcher, noted = Launcher(), asyncio.Queue[LocalEvent]()
    manager = manager_of(launcher, tmp_path, noted.put_nowait)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    plan = GenerationPlan(generation=1, world_size=1)
    assignment = Assignment(job_id="a", plan=plan, rank=0, spec=needs, checkpoint_dir="unused")
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    reported = await noted.get()
    assert isinstance(reported, WorkerReported)
    assert isinstance(reported.message, Alive)
    assert reported.message.phase == phase
    told.set()
    launched = (await launcher.launched.get()).assignment
    assert (launched.packages_path, launched.environment_path) == shown
    running.cancel()
    await asyncio.wait({running})
    assert noted.empty()


HAN = ContinuedJob(job_id="han", identity="1" * 16, iteration=40)


def test_peers_wait_as_long_as_a_node_looks_for_a_checkpoint_that_is_shown_late() -> None:
    config = PoolConfig(stall_timeout_s=60.0)
    alone = config.timeouts_of(spec())
    continuing = config.timeouts_of(spec(continues=ContinuedJob(job_id="han", identity="1" * 16, iteration=4)))
    assert continuing.rendezvous_wait_s == alone.rendezvous_wait_s + CHECKPOINT_WAIT_S


@pytest.mark.parametrize(
    ("purpose", "known", "promised"), [("train", 40, 40), ("train", 20, 20), ("train", 41, None), ("profile", 0, None)]
)
async def test_a_job_waits_for_the_checkpoint_that_the_ledger_knows_of_the_job_that_it_continues(
    purpose: Any, known: int, promised: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited, preparing = list[tuple[int, float]](), list[tuple[str, ...]]()
    launcher = Launcher()
    manager = manager_of(launcher, tmp_path)

    async def bring(data_dir: Path, job_id: str, continued: ContinuedJob, *, wait_s: float) -> None:
        awaited.append((continued.iteration, wait_s))
        preparing.append(manager.preparing)

    monkeypatch.setattr("elasticflow.services.executor.processes.manager.bring_promised_checkpoints", bring)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    assignment = Assignment(
        job_id="a",
        plan=GenerationPlan(generation=1, world_size=1),
        rank=0,
        spec=spec(continues=HAN, max_iterations=900),
        checkpoint_dir="unused",
        purpose=purpose,
        checkpoint_iteration=known,
        checkpoint_wait_s=7.0,
    )
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    await launcher.launched.get()
    assert awaited == ([] if promised is None else [(promised, 7.0)])
    assert preparing == [("a",)] * len(awaited), "the monitor does not count it as stalled meanwhile"
    running.cancel()
    await asyncio.wait({running})


async def test_what_is_said_of_data_that_cannot_be_had_is_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def paths(data: FetchedData, tenant: str, uris: Any, environment: Any, *, within_s: float) -> dict[str, str]:
        raise CannotPrepare(f"no permission for {environment}")

    monkeypatch.setattr(FetchedData, "paths", paths)
    monkeypatch.setattr(SecretKeys, "open", lambda *_: {"TOKEN": "hidden"})
    noted = asyncio.Queue[LocalEvent]()
    manager = manager_of(Launcher(), tmp_path, noted.put_nowait)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    wants = spec(data={"train": "s3://bucket/train"}, environment={"COLOUR": "blue"})
    assignment = Assignment(
        job_id="a",
        plan=GenerationPlan(generation=1, world_size=1),
        rank=0,
        spec=wants,
        checkpoint_dir="unused",
    )
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    noted_first = await noted.get()
    assert isinstance(noted_first, WorkerReported)
    assert noted_first.message == Failed(error="no permission for {'COLOUR': 'blue', 'TOKEN': '***'}")
    running.cancel()
    await asyncio.wait({running})


class Copies:
    """Of checkpoints: one is made once `made` is set. why: none can be made."""

    def __init__(self, why: str = "") -> None:
        self.made, self.tenants, self._why = asyncio.Event(), list[str](), why
        self.iterations, self.known = list[int](), list[int]()

    async def bring(self, *_: Any, **__: Any) -> None:
        pass

    async def store_newer(self, tenant: str, assignment: Assignment, known: int, *, within_s: float) -> None:
        self.known.append(known)

    async def store(self, tenant: str, assignment: Assignment, iteration: int) -> str:
        self.tenants.append(tenant)
        self.iterations.append(iteration)
        await self.made.wait()
        return self._why


@pytest.mark.parametrize(
    ("why", "request_", "expected"),
    [
        ("", 0, ["CheckpointWritten", "WorkerEnded"]),
        ("an outage", 0, ["WorkerEnded"]),
        ("an outage", 7, ["CheckpointFailed", "WorkerEnded"]),
    ],
)
async def test_a_checkpoint_and_the_end_behind_it_count_once_it_has_a_copy(
    tmp_path: Path, why: str, request_: int, expected: list[str]
) -> None:
    noted, copies, launcher = list[str](), Copies(why), Launcher()

    def note(event: LocalEvent) -> None:
        noted.append(type(event.message if isinstance(event, WorkerReported) else event).__name__)

    manager = manager_of(launcher, tmp_path, note, copies=copies)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    plan = GenerationPlan(generation=3, world_size=1)
    assignment = Assignment(job_id="a", plan=plan, rank=0, spec=spec(), checkpoint_dir="unused", job_identity="of-a")
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    worker: Any = await launcher.launched.get()
    await asyncio.sleep(0)
    for event in (CheckpointWritten(iteration=5, request=request_), Alive(iteration=5, seconds_since_progress=0.0)):
        launcher.on_event(worker, event)
    launcher.on_event(worker, Exited(code=0, signal=None))
    for _ in range(20):
        await asyncio.sleep(0)
    assert noted == ["Alive"], "what follows no checkpoint is told at once"
    copies.made.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (noted, copies.tenants) == (["Alive", *expected], ["lab"])
    running.cancel()
    await asyncio.wait({running})


async def started_worker(manager: WorkerManager, launcher: Launcher) -> Any:
    plan = GenerationPlan(generation=3, world_size=1)
    assignment = Assignment(job_id="a", plan=plan, rank=0, spec=spec(), checkpoint_dir="unused", job_identity="of-a")
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    worker = await launcher.launched.get()
    await asyncio.sleep(0)
    return worker


async def test_a_slow_store_gets_the_newest_of_the_checkpoints_that_wait_and_those_that_were_asked_for(
    tmp_path: Path,
) -> None:
    """Else the end of a worker would wait for a copy of each checkpoint of an outage."""
    noted, copies, launcher = list[Any](), Copies(), Launcher()

    def note(event: LocalEvent) -> None:
        noted.append(event.message if isinstance(event, WorkerReported) else type(event).__name__)

    manager = manager_of(launcher, tmp_path, note, copies=copies)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    worker = await started_worker(manager, launcher)
    written = [CheckpointWritten(iteration=at, request=7 if at == 3 else 0) for at in range(1, 7)]
    for event in (*written, Exited(code=0, signal=None)):
        launcher.on_event(worker, event)
        await asyncio.sleep(0)
    copies.made.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert (copies.known, copies.iterations) == ([0], [1, 3, 6]), "a start copies what the pool does not know yet"
    assert noted == [written[0], written[2], written[5], "WorkerEnded"]
    running.cancel()
    await asyncio.wait({running})


async def test_a_worker_that_ends_with_its_executor_is_told_without_its_copies(tmp_path: Path) -> None:
    noted, launcher = list[str](), Launcher()
    manager = manager_of(launcher, tmp_path, lambda event: noted.append(type(event).__name__), copies=Copies())
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    worker = await started_worker(manager, launcher)
    launcher.on_event(worker, CheckpointWritten(iteration=5))
    running.cancel()
    await asyncio.wait({running})
    launcher.on_event(worker, Exited(code=None, signal=9))
    assert noted == ["WorkerEnded"]
