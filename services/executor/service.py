"""The executor as a service: hosts its policy, its worker manager and its heartbeat until the node leaves the pool."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import (
    Action,
    BeginShutDown,
    LocalEvent,
    ShutDown,
    ShutDownRequested,
    StartWorker,
    StoreArtifacts,
    UsePaddingSlots,
)
from elasticflow.services.executor.decisions.policy import executor_policy
from elasticflow.services.executor.decisions.state import NodeSpecification, State
from elasticflow.services.executor.end_notices.sources import source_of
from elasticflow.services.executor.end_notices.watcher import EndWatcher
from elasticflow.services.executor.heartbeat import Heartbeat
from elasticflow.services.executor.loads.load_runners import LoadRunners
from elasticflow.services.executor.loads.padding_slot import RunnerSettings
from elasticflow.services.executor.node_identity import node_specification_of, only_executor
from elasticflow.services.executor.old_files import OldFiles
from elasticflow.services.executor.processes.artifact_uploads import ArtifactUploads
from elasticflow.services.executor.processes.checkpoint_copies import CheckpointCopies
from elasticflow.services.executor.processes.code_archive import CodeArchive
from elasticflow.services.executor.processes.gpu_watch import GpuGauges, GpuWatch, TrainingWorker
from elasticflow.services.executor.processes.job_logs import LogPublisher
from elasticflow.services.executor.processes.launcher import Launcher, OnEvent
from elasticflow.services.executor.processes.manager import GenerationSecrets, Launching, WorkerManager
from elasticflow.services.executor.processes.reached_workers import ReachedWorkers
from elasticflow.services.executor.processes.worker_isolation import WorkerIsolation, prepare_isolation
from elasticflow.services.executor.settings import ExecutorSettings
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus.contract import until_available
from elasticflow.shared.runtime.process.clock import boot_s
from elasticflow.shared.runtime.process.folder_tree import jobs_with_files
from elasticflow.shared.runtime.process.gpu_readings import GpuReader
from elasticflow.shared.runtime.process.secret_sealing import SecretKeys
from elasticflow.shared.runtime.remote_folder import RemoteFolder
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.ledger_bookmark import LedgerBookmark, unknown_jobs_problem
from elasticflow.shared.runtime.service.run_service import Process, host_policy

DEREGISTER_TIMEOUT_S = 5.0  # for the last events, after the workers have stopped or were killed

BOOKMARK_EVERY_S = 2.0

MakeLauncher = Callable[[OnEvent], Launching]


async def serve(process: Process, *, settings: ExecutorSettings, make_launcher: MakeLauncher | None = None) -> None:
    """Run this node's workers until cancelled; then stop them and leave the pool."""
    data_dir = process.settings.data_dir
    process.log.info("node specification", **{name: getattr(settings, name) for name in settings.__slots__})
    if settings.until_s is not None and settings.until_s <= process.clock.now_s():
        raise BadSettings((f"EF_NODE_UNTIL={settings.until_s:.0f}: this node has ended already; name a later time",))
    watcher = _end_watcher(process, settings)
    if watcher is not None:
        await watcher.check()
    secret_keys = SecretKeys.read(settings.secrets_key)
    isolation = await asyncio.to_thread(prepare_isolation, process.settings, settings)
    for missing in isolation.missing:
        process.log.warning("NotIsolated", missing=missing)
    await asyncio.to_thread(_check_store, "EF_ARTIFACT_STORE", settings.artifact_store)
    await asyncio.to_thread(_check_store, "EF_CHECKPOINT_STORE", settings.checkpoint_store)
    generation_secrets = GenerationSecrets.read(settings.workers_secret_file)
    workers_secret = generation_secrets.digest(process.settings.pool)
    specification = node_specification_of(settings, data_dir, isolation, workers_secret)
    with only_executor(data_dir, specification) as previous_run_id:
        default = partial(_launcher, data_dir, settings, isolation)
        executor = Executor(
            process,
            specification,
            make_launcher or default,
            previous_run_id,
            secret_keys,
            generation_secrets,
            settings,
            watcher,
        )
        await executor.run()


class Executor:
    """Host, worker manager, uploads and heartbeat of one node, and how they end together."""

    def __init__(
        self,
        process: Process,
        node_specification: NodeSpecification,
        make_launcher: MakeLauncher,
        previous_run_id: str,
        secret_keys: SecretKeys,
        generation_secrets: GenerationSecrets,
        settings: ExecutorSettings,
        end_watcher: EndWatcher | None = None,
    ) -> None:
        self._process = process
        self._end_watcher = end_watcher
        self._node_specification = node_specification
        self._previous_run_id = previous_run_id
        self._host: Host[State] | None = None
        self._heartbeat: Heartbeat | None = None
        # None: shut down as requested.
        self._shut_down_due: asyncio.Future[BadSettings | None] = asyncio.get_running_loop().create_future()
        code = CodeArchive(process.bus, process.settings.pool, process.settings.data_dir)
        data_dir = process.settings.data_dir.resolve()
        store = settings.checkpoint_store and f"{settings.checkpoint_store}/{process.settings.pool}"
        self._checkpoint_copies = CheckpointCopies(store, data_dir, process.log) if store else None
        self._worker_manager = WorkerManager(
            code,
            data_dir=process.settings.data_dir,
            secret_keys=secret_keys,
            gpu_left=lambda gpu_index: self._load_runners.left(gpu_index),
            announced=self._announced,
            make_launcher=make_launcher,
            note=self._note,
            shut_down=self._shut_down,
            log=process.log,
            generation_secrets=generation_secrets,
            copies=self._checkpoint_copies,
        )
        self._artifact_uploads = ArtifactUploads(
            process.bus,
            process.settings.pool,
            data_dir,
            node_specification.node_id,
            note=self._note,
            log=process.log,
            uri=settings.artifact_store,
        )
        self._log_publisher = LogPublisher(
            process.bus,
            process.settings.pool,
            data_dir,
            node_specification.node_id,
            process.log,
        )
        self._reached_workers = ReachedWorkers(
            process.bus,
            process.settings.pool,
            node_specification.node_id,
            self._worker_manager,
            process.clock,
            process.log,
        )
        uuids = settings.gpu_uuids if settings.device == "cuda" else ()
        self._gpu_watch = GpuWatch(
            GpuReader(uuids),
            node_specification.node_id,
            gauges=GpuGauges(process.metrics),
            training=self._training,
            note=self._note,
            config=self._config,
            clock=process.clock,
            log=process.log,
        )
        self._load_runners = LoadRunners(
            process.bus,
            process.settings.pool,
            RunnerSettings(
                node_id=node_specification.node_id,
                device=node_specification.device,
                cpu_share=node_specification.cpu_share,
                code=code,
                fork=self._worker_manager.fork,
                # not within "logs", where each job has a folder of its name
                logs=data_dir / "load-logs",
                results=data_dir / "results",
                log=process.log,
            ),
        )

    async def run(self) -> None:
        """Raises BadSettings if another executor has this node's name."""
        try:
            await self._worker_manager.open()
            hosting = asyncio.create_task(
                host_policy(
                    self._process,
                    executor_policy(self._node_specification),
                    act=self._act,
                    beside=self._beside,
                ),
                name="hosting",
            )
            try:
                await self._until_shut_down(hosting)
            finally:
                await _cancelled(hosting)
        finally:
            await self._worker_manager.close()

    async def _until_shut_down(self, hosting: "asyncio.Task[None]") -> None:
        ends = {hosting, self._shut_down_due}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if self._host is not None and self._host.state.is_in_ledger:
                self._host.note(ShutDownRequested())
                limit_s = self._node_specification.stop_grace_s + DEREGISTER_TIMEOUT_S
                await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            raise
        if hosting.done():
            await hosting
        if (error := self._shut_down_due.result()) is not None:
            raise error

    async def _beside(self, host: Host[State]) -> None:
        self._host = host
        process = self._process
        heartbeat = self._heartbeat = Heartbeat(
            host,
            process.bus,
            process.settings.pool,
            process.clock,
            process.log,
            self._worker_manager,
            boot_s=boot_s,
            previous_run_id=self._previous_run_id,
            gpu_reports=lambda: self._gpu_watch.reports,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._worker_manager.run(), name="worker_manager")
                tasks.create_task(heartbeat.run(), name="heartbeat")
                housekeeping = {
                    "padding loads": self._load_runners.run,
                    "artifacts": self._artifact_uploads.run,
                    "logs": partial(self._publish_logs, host),
                    "stacks and commands": self._reached_workers.run,
                    "GPUs": partial(self._watch_gpus, host),
                    "old files": partial(self._delete_old_files, host),
                    "old artifacts": partial(self._delete_old_artifacts, host),
                    "old copies of checkpoints": partial(self._delete_old_copies, host),
                    "bookmark": partial(self._keep_bookmark, host),
                }
                if self._end_watcher is not None:
                    housekeeping["notices of its end"] = partial(self._watch_for_end, host, self._end_watcher)
                for name, work in housekeeping.items():
                    tasks.create_task(process.keep_up(name, work), name=name)
        except* BadSettings as refusal:
            self._end(_first(refusal))

    async def _watch_for_end(self, host: Host[State], watcher: EndWatcher) -> None:
        await host.ready.wait()
        await watcher.run(self._note)

    async def _watch_gpus(self, host: Host[State]) -> None:
        await host.ready.wait()
        await self._gpu_watch.run()

    def _training(self) -> tuple[TrainingWorker, ...]:
        workers = () if self._host is None else self._host.state.running
        return tuple(TrainingWorker(worker=each.id, gpu_index=each.gpu.gpu_index) for each in workers if each.trains)

    def _config(self) -> PoolConfig:
        assert self._host is not None, "GPUs are watched before the host ran"
        return self._host.folded.config

    async def _delete_old_files(self, host: Host[State]) -> None:
        """Once the ledger is folded: before, it is not known which jobs are live."""
        await host.ready.wait()
        process = self._process
        await OldFiles(process.settings.data_dir, process.clock, lambda: host.folded, process.log).run()

    async def _delete_old_artifacts(self, host: Host[State]) -> None:
        await host.ready.wait()
        await self._artifact_uploads.delete_old(self._process.clock, lambda: host.folded.config)

    async def _delete_old_copies(self, host: Host[State]) -> None:
        await host.ready.wait()
        if self._checkpoint_copies is not None:
            await self._checkpoint_copies.delete_old(self._process.clock, lambda: host.folded)

    async def _keep_bookmark(self, host: Host[State]) -> None:
        """Once the ledger is folded. A ledger that is not the one that was read here is reported at each start."""
        process, pool = self._process, self._process.settings.pool
        data_dir = process.settings.data_dir
        with_files = await asyncio.to_thread(jobs_with_files, data_dir)  # before the ledger is read: it knows them all
        await host.ready.wait()
        if problem := unknown_jobs_problem(host.folded, data_dir, with_files):
            process.log.warning("JobsUnknown", problem=problem)
        bookmark = LedgerBookmark.of_reader(data_dir, pool, self._node_specification.node_id)
        find = partial(bookmark.problem, process.bus, pool)
        if problem := await until_available(find, process.log, "ledger compared with what was read here"):
            process.log.error("LedgerIsOlder", problem=problem)
            return
        while True:
            if (newest := host.newest_record) is not None:
                with contextlib.suppress(OSError):  # a full disk costs this check only
                    bookmark.move(newest)
            await asyncio.sleep(BOOKMARK_EVERY_S)

    async def _publish_logs(self, host: Host[State]) -> None:
        await host.ready.wait()
        await self._log_publisher.run(lambda: host.folded)

    def _act(self, action: Action) -> None:
        if isinstance(action, UsePaddingSlots):
            self._load_runners.use(action)
        elif isinstance(action, StoreArtifacts):
            self._artifact_uploads.act(action)
        elif isinstance(action, BeginShutDown):
            self._process.log.info("NodeEnds", until_s=self._host.state.until_s if self._host is not None else None)
        else:
            if isinstance(action, StartWorker):
                self._log_publisher.follow(action)
            self._worker_manager.act(action)

    async def _announced(self) -> None:
        assert self._heartbeat is not None, "a worker starts before the host ran"
        await self._heartbeat.stored()

    def _note(self, note: LocalEvent) -> None:
        assert self._host is not None, "a worker reported before the host ran"
        self._host.note(note)

    def _shut_down(self, action: ShutDown) -> None:
        problem = f"EF_NODE_ID={self._node_specification.node_id!r}: another executor has joined under this name"
        self._end(BadSettings(problems=(problem,)) if action.replaced else None)

    def _end(self, error: BadSettings | None) -> None:
        if not self._shut_down_due.done():
            self._shut_down_due.set_result(error)


def _end_watcher(process: Process, settings: ExecutorSettings) -> EndWatcher | None:
    if not settings.until_notice:
        return None
    has_gpus = settings.device == "cuda"
    source = source_of(settings.until_notice, settings.notice_address, has_gpus=has_gpus, environment=os.environ)
    return EndWatcher(settings.until_notice, source, process.clock, process.log)


def _check_store(variable: str, uri: str) -> None:
    """Raises BadSettings if no library of this node knows its protocol."""
    try:
        if uri:
            RemoteFolder(uri)
    except Exception as error:
        raise BadSettings((f"{variable}={uri}: {error}",)) from error


def _first(group: BaseExceptionGroup[BadSettings]) -> BadSettings:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _launcher(data_dir: Path, settings: ExecutorSettings, isolation: WorkerIsolation, on_event: OnEvent) -> Launcher:
    return Launcher(
        data_dir=data_dir,
        node_id=settings.node_id,
        on_event=on_event,
        preload=settings.preload,
        device=settings.device,
        gpu_names=settings.gpu_uuids if isolation.separates_gpus else settings.gpu_names,
        warm_workers=settings.warm_workers,
        data_interface=settings.data_interface,
        isolation=isolation,
    )


async def _cancelled(task: "asyncio.Task[Any]") -> None:
    """Cancel the task and wait for its end. Its exception is only raised where the task is awaited."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
