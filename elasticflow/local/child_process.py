"""A child process of the supervisor: start, watch, restart with backoff, stop."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from elasticflow.errors import StartFailed
from elasticflow.shared.runtime.process.http_server import page_is_ok
from elasticflow.shared.runtime.process.process_termination import kill_process_group, preexec_die_with_parent

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
        metrics_port: int,
        report: Callable[[str], None],
        on_start: Callable[[], None],
    ) -> None:
        self.name, self.log_file, self.metrics_port = name, log_file, metrics_port
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
        """Start the process, and restart it whenever it ends. Raises StartFailed if a restart cannot help."""
        loop = asyncio.get_running_loop()
        retry_s = _FIRST_RETRY_S
        while True:
            started_at = loop.time()
            process = self._process = await self._start()
            self._on_start()
            status = await process.wait()
            self.num_failures += 1
            if status == _CANNOT_WORK:
                raise StartFailed(self.name, last_line(self.log_file), str(self.log_file))
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


def _ended(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
