"""`eflow up` on one machine: a NATS server, four services, and an executor for each node.

The supervisor starts each in a process of its own, watches it, restarts it when it dies, and stops all in order. All
die with the supervisor, however it ends.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from elasticflow.client.ledger import LedgerView
from elasticflow.client.operator_decisions import configure
from elasticflow.client.pool_endpoint import RunFile, RunningProcess, remove_run_file, take, unusable_folder
from elasticflow.local.up_plan import DECIDERS, PlannedProcess, UpPlan
from elasticflow.shared import machine_code
from elasticflow.shared.errors import CannotStart, ElasticFlowError, StorageFull
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import Clock, SystemClock, fresh_id
from elasticflow.shared.runtime.process.files import keep_token
from elasticflow.shared.runtime.process.folder_tree import jobs_with_files
from elasticflow.shared.runtime.process.http_server import page_is_ok
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from elasticflow.shared.runtime.process.process_termination import kill_process_group, preexec_die_with_parent
from elasticflow.shared.runtime.process.run_module import module_command
from elasticflow.shared.runtime.process.secret_sealing import kept_key
from elasticflow.shared.runtime.service.ledger_bookmark import is_remembered, older_ledger, unknown_jobs_problem

# --- A child process of the supervisor: start, watch, restart with backoff, stop -----------------------

_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 10.0
_LONG_ENOUGH_S = 10.0  # a process that lived this long restarts without backoff
_STOP_TIMEOUT_S = 20.0
_CANNOT_WORK = 2  # exit status: wrong settings or credentials; a restart cannot help
_TAIL_BYTES = 4096
_PAGE_TIMEOUT_S = 2.0


class ChildProcess:
    """report: called if the process ends without a request. on_start: called after each start, with a new pid."""

    def __init__(
        self,
        *,
        name: str,
        argv: tuple[str, ...],
        environment: Mapping[str, str],
        log_file: Path,
        report: Callable[[str], None],
        on_start: Callable[[], None],
    ) -> None:
        self.name, self.log_file, self.metrics_port = name, log_file, free_port("127.0.0.1")
        self._argv, self._environment = argv, environment
        self._report, self._on_start = report, on_start
        self.num_failures = 0  # ends without a request
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id while the process runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else None

    async def keep_running(self) -> None:
        """Start the process, and restart it whenever it ends. Raises CannotStart if a restart cannot help."""
        loop = asyncio.get_running_loop()
        retry_s = _FIRST_RETRY_S
        while True:
            started_at = loop.time()
            process = self._process = await self._start()
            self._on_start()
            status = await process.wait()
            self.num_failures += 1
            if status == _CANNOT_WORK:
                raise _failed(self.name, last_line(self.log_file), self.log_file)
            if loop.time() - started_at >= _LONG_ENOUGH_S:
                retry_s = _FIRST_RETRY_S
            self._report(f"{self.name} {_ended(status)}; restarting it (log: {self.log_file})")
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    async def _start(self) -> asyncio.subprocess.Process:
        if not _is_free(self.metrics_port):
            self.metrics_port = free_port("127.0.0.1")
        environment = {**self._environment, "EF_METRICS_PORT": str(self.metrics_port)}
        return await start_process(self._argv, environment, self.log_file)

    async def is_healthy(self) -> bool:
        """Whether its health page reports 200."""
        return self.pid is not None and await page_is_ok(
            "127.0.0.1", self.metrics_port, "/healthz", timeout_s=_PAGE_TIMEOUT_S
        )

    async def stop(self) -> None:
        """Send SIGTERM; after a timeout kill the process and its descendants."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            self._report(f"{self.name} does not stop; killing it")
            kill_process_group(process.pid)
            await process.wait()


async def start_process(
    argv: tuple[str, ...], environment: Mapping[str, str], log_file: Path
) -> asyncio.subprocess.Process:
    """Its output is appended to log_file; it dies with this process."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *argv,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only the supervisor, which stops all in order
            preexec_fn=preexec_die_with_parent(),
        )


def free_port(host: str) -> int:
    """A port without listener at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def last_line(log_file: Path) -> str:
    """The last line of a process's output."""
    try:
        with log_file.open("rb") as log:
            log.seek(max(0, log_file.stat().st_size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def _failed(name: str, reason: str, log_file: Path) -> CannotStart:
    """name: the process that did not become healthy."""
    return CannotStart("process_failed", f"{name} did not start: {reason}; its log is {log_file}")


def _ended(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


# --- supervisor ----------------------------------------------------------------------------------------

HEALTHY_WITHIN_S = 60.0
GIVE_UP_AFTER = 4  # failures before the process is first healthy
_POLL_S = 0.2
_WAIT_REPORTED_S = 10.0

Report = Callable[[str], None]


class Supervisor:
    """Runs an `UpPlan` until cancelled. report: called with one line for each event that concerns a user."""

    def __init__(self, plan: UpPlan, report: Report, clock: Clock | None = None) -> None:
        self._plan = replace(plan, data_dir=plan.data_dir.absolute())
        self._report = report
        self._clock = clock or SystemClock()
        self._server: EmbeddedServer | None = None
        self._children: list[ChildProcess] = []
        self._run: RunFile | None = None

    async def run(self, on_healthy: Callable[[RunFile], None]) -> None:
        """Start all processes, call on_healthy, and keep all running. Raises CannotStart."""
        lock = take(self._plan.data_dir)
        try:
            if not machine_code.is_complete():
                log_file = self._plan.data_dir / "services" / "compilation.log"
                await compile_scheduler(os.environ, log_file, self._report)
            async with self._nats() as url:
                with self._waiting_for(f"the ledger of pool {self._plan.pool}, which is read"):
                    config = await self._configure(url)
                    await self._compare_ledger(url)
                if not self._plan.nats_url:
                    keep_token(self._plan.workers_secret_file)
                own_nodes = self._plan.nodes()
                if 0 < len(own_nodes) <= config.reserve_nodes:
                    self._report(
                        "admission promises no deadline before more nodes join: the reserve of "
                        f"{config.reserve_nodes} holds back all {len(own_nodes)} of this machine"
                    )
                if limits := {int(node.get("EF_JOB_MEMORY_BYTES", 0)) for node in own_nodes} - {0}:
                    self._report(
                        f"each process of a job on a CPU slot may allocate {min(limits) / 2**30:.1f} GiB: set "
                        "EF_JOB_MEMORY_BYTES for another limit, 0 for none"
                    )
                await self._supervise(url, own_nodes, on_healthy)
        finally:
            remove_run_file(self._plan.data_dir)
            os.close(lock)

    async def _configure(self, url: str) -> PoolConfig:
        """Create and configure the pool. Raises CannotStart if the disk of our own NATS is too full."""
        plan = self._plan
        own = {} if plan.nats_url else {"secrets_key": kept_key(plan.secrets_file)}
        try:
            return await configure(
                url,
                plan.pool,
                plan.config,
                self._clock,
                changes=own | dict(plan.changes),
                stream_replicas=plan.stream_replicas,
            )
        except StorageFull as error:
            if plan.nats_url:
                raise
            reason = f"its disk has too little space for NATS ({error.reason})"
            raise unusable_folder(str(plan.data_dir), reason) from None

    async def _compare_ledger(self, url: str) -> None:
        """Report a ledger that is older than the one that was read on this machine."""
        plan = self._plan
        bus = await connect_nats(url, name="eflow-up", access=NatsAccess.from_environment(os.environ))
        try:
            problem = await older_ledger(bus, plan.pool, plan.data_dir)
            if not is_remembered(plan.data_dir, plan.pool) and (with_files := jobs_with_files(plan.data_dir)):
                problem = unknown_jobs_problem(await LedgerView(bus, plan.pool).state(), plan.data_dir, with_files)
            if problem is not None:
                self._report(f"warning: {problem}")
        finally:
            await bus.close()

    @contextlib.contextmanager
    def _waiting_for(self, what: str) -> Iterator[None]:
        """Report what takes long."""
        notice = asyncio.get_running_loop().call_later(_WAIT_REPORTED_S, self._report, f"waiting for {what}")
        try:
            yield
        finally:
            notice.cancel()

    async def _supervise(
        self, url: str, own_nodes: Sequence[Mapping[str, str]], on_healthy: Callable[[RunFile], None]
    ) -> None:
        self._children = [self._child(process) for process in self._plan.processes(url, own_nodes)]
        self._run = RunFile(
            pid=os.getpid(),
            nats_url=url,
            pool=self._plan.pool,
            data_dir=str(self._plan.data_dir),
            started_at_s=self._clock.now_s(),
            num_cpu_slots=sum(int(node["EF_SLOTS"]) for node in own_nodes if "EF_CPU_SHARE" in node),
            cores_per_cpu_slot=max((float(node.get("EF_CPU_SHARE", 0)) for node in own_nodes), default=0.0),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._server is not None:
                    tasks.create_task(self._keep_nats(self._server), name="nats-server")
                for child in self._children:
                    tasks.create_task(child.keep_running(), name=child.name)
                await self._until_healthy()
                self._write_run_file(healthy=True)
                on_healthy(self._run)
        except BaseExceptionGroup as group:  # one line has space for one cause
            raise group.exceptions[0] from None
        finally:
            await self._stop_children()

    # -- NATS --------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _nats(self) -> AsyncIterator[str]:
        """The URL of the bus; our own server, if any, runs until the exit."""
        if self._plan.nats_url:
            yield self._plan.nats_url
            return
        self._server = EmbeddedServer(
            self._plan.data_dir / "nats",
            port=self._plan.nats_port,
            host=self._plan.nats_host,
            token=kept_token(self._plan.data_dir),
            log_file=self._plan.data_dir / "services" / "nats-server.log",
        )
        self._server.start()
        try:
            yield self._server.url
        finally:
            self._server.stop()

    async def _keep_nats(self, server: EmbeddedServer) -> None:
        """Restart the server on its port and store when it has died or its storage limit no longer fits the disk."""
        retry_s = _FIRST_RETRY_S
        while True:
            if server.pid is not None and server.has_wrong_bound:
                self._report(f"the free space of {server.store_dir} has changed; nats-server gets another limit")
                server.stop()
            elif server.pid is not None:
                retry_s = _FIRST_RETRY_S
                await asyncio.sleep(_POLL_S)
                continue
            self._report("nats-server ended; restarting it")
            try:
                server.start()
                self._write_run_file()
            except (ElasticFlowError, OSError) as error:
                self._report(str(error))
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)

    # -- services and executors --------------------------------------------------------------------------

    def _child(self, process: PlannedProcess) -> ChildProcess:
        return ChildProcess(
            name=process.name,
            argv=module_command(f"elasticflow.services.{process.service}"),
            environment=process.environment,
            log_file=self._plan.data_dir / "services" / f"{process.name}.log",
            report=self._report,
            on_start=self._write_run_file,
        )

    async def _until_healthy(self) -> None:
        """Raises CannotStart, naming the first process that is not healthy in time."""
        for child in self._children:
            try:
                with self._waiting_for(f"{child.name} to be healthy (its log: {child.log_file})"):
                    async with asyncio.timeout(HEALTHY_WITHIN_S):
                        while child.num_failures < GIVE_UP_AFTER and not await child.is_healthy():  # noqa: ASYNC110 - a health page can only be polled
                            await asyncio.sleep(_POLL_S)
            except TimeoutError:
                raise _failed(child.name, f"not healthy after {HEALTHY_WITHIN_S:g} s", child.log_file) from None
            if child.num_failures >= GIVE_UP_AFTER:
                raise _failed(child.name, last_line(child.log_file), child.log_file)

    async def _stop_children(self) -> None:
        """Deciding services first, so that leaving nodes migrate no job; then executors with their workers; the
        monitor last."""
        for stage in (DECIDERS, ("executor",), ("monitor",)):
            stopping = [child for child in self._children if child.name.startswith(stage)]
            await asyncio.gather(*(child.stop() for child in stopping))

    def _write_run_file(self, *, healthy: bool = False) -> None:
        if self._run is None:
            return
        processes = {
            child.name: RunningProcess(pid=child.pid, metrics_port=child.metrics_port)
            for child in self._children
            if child.pid is not None
        }
        if self._server is not None and self._server.pid is not None:
            processes["nats-server"] = RunningProcess(pid=self._server.pid)
        self._run = replace(self._run, processes=processes, healthy=healthy or self._run.healthy)
        self._run.write()


def kept_token(data_dir: Path) -> str:
    """The token of this folder's own server: created once, readable only by its owner."""
    path = data_dir / "nats" / "token"
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(fresh_id())
    return path.read_text().strip()


_COMMAND = module_command("elasticflow.shared.scheduling.warm_up")
_REPORT_AFTER_S = 3.0  # no report if nearly all of the code is compiled


async def compile_scheduler(
    environment: Mapping[str, str],
    log_file: Path,
    report: Callable[[str], None],
    *,
    command: tuple[str, ...] = _COMMAND,
    report_after_s: float = _REPORT_AFTER_S,
) -> None:
    """Compile in a child process that ends with this call. report: called if it takes long. Raises CannotStart."""
    process = await start_process(command, environment, log_file)
    notice = asyncio.get_running_loop().call_later(
        report_after_s, report, "compiling the scheduler, once for this installation: about 20 s"
    )
    try:
        status = await process.wait()
    finally:
        notice.cancel()
        if process.returncode is None:
            process.kill()  # the next process compiles the rest
            await process.wait()
    if status != 0:
        raise _failed("the compiled scheduler", last_line(log_file), log_file)
