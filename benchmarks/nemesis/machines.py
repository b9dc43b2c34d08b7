"""A pool on machines of its own: three NATS servers, two replicas of admission, the other services, an executor.

Each process can be killed, started again, and paused. Clients are on the host of the network, which no fault reaches. A
random generator chooses faults and where they happen, one at a time, each for some seconds.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import numpy as np

from benchmarks.partitions.network import SERVERS, Network, start_server, url_of

POOL = "nemesis"
NODE = "node-0"
SERVICES = ("admission-1", "admission-2", "allocator", "placement", "monitor")
EXECUTOR = "executor"
DISK_SIZE = "96m"  # of each server


class Machines:
    """folder: for all files. Only for a process behind `ISOLATED`."""

    def __init__(self, folder: Path) -> None:
        self.network = Network((*SERVERS, *SERVICES, EXECUTOR))
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for server in SERVERS:
            (folder / server).mkdir()
            _run("mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(folder / server))

    @property
    def url(self) -> str:
        """The URL of all servers."""
        return ",".join(url_of(self.network, server) for server in SERVERS)

    def start(self, name: str) -> None:
        """Start the process of a machine, unless it runs."""
        if name not in self._processes:
            self._processes[name] = (
                start_server(self.network, name, self.folder) if name in SERVERS else self._run(name)
            )

    def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def restart(self, name: str) -> None:
        self.kill(name)
        self.start(name)

    def pause(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def set_clock(self, service: str, offset_s: float) -> None:
        """The clock of this service is ahead by so much from now on."""
        written = self._offset_file(service).with_suffix(".new")
        written.write_text(repr(offset_s))
        written.replace(self._offset_file(service))

    def fill_disk(self, server: str) -> None:
        with contextlib.suppress(OSError), (self.folder / server / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(1 << 20))
                filler.flush()

    def empty_disk(self, server: str) -> None:
        """A server that found its disk full stores nothing until it starts anew."""
        (self.folder / server / "filler").unlink(missing_ok=True)  # a disk that was full already has none
        self.restart(server)

    def slow_down_disk(self, server: str, delay_s: float) -> subprocess.Popen[bytes]:
        """Delay each sync of this server, until the returned process ends."""
        delay_us = int(1e6 * delay_s)
        inject = f"inject=fsync,fdatasync:delay_exit={delay_us}"
        command = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", inject)
        pid = str(self._processes[server].pid)
        return subprocess.Popen([*command, "-p", pid], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ended(self) -> dict[str, str]:
        """Machines whose process ended by itself, with the last line that it wrote."""
        ended = [name for name, process in self._processes.items() if process.poll() is not None]
        return {name: (self.folder / f"{name}.log").read_text().rstrip().rpartition("\n")[2] for name in ended}

    def _run(self, name: str) -> subprocess.Popen[bytes]:
        first = (SERVICES.index(name) if name in SERVICES else 0) % len(SERVERS)
        servers = [url_of(self.network, server) for server in (*SERVERS[first:], *SERVERS[:first])]
        environment = {
            **os.environ,
            "NATS_URL": ",".join(servers),
            "EF_POOL": POOL,
            "EF_REPLICAS": "3",
            "EF_DATA_DIR": str(self.folder / name),
            "EF_LOG_FORMAT": "json",
            "EF_METRICS_PORT": "0",
        }
        log = self.folder / f"{name}.log"
        return self.network.start(name, self._command(name, environment["NATS_URL"]), env=environment, log=log)

    def _command(self, name: str, url: str) -> Sequence[str]:
        if name == EXECUTOR:
            arguments = (url, POOL, NODE, str(self.folder / name), str(self.folder / "records.jsonl"))
            return [sys.executable, "-m", "benchmarks.partitions.recording_executor", *arguments]
        module = f"elasticflow.services.{name.split('-')[0]}"
        return [sys.executable, "-m", "benchmarks.nemesis.skewed_service", module, str(self._offset_file(name))]

    def _offset_file(self, service: str) -> Path:
        return self.folder / f"{service}.offset"


def why_not() -> str:
    """What is missing for these faults; "" if nothing is."""
    return "" if shutil.which("strace") else "not installed: strace"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


# --- faults --------------------------------------------------------------------------------------------


_SLOW_SYNC_S = (0.05, 0.5)
_LARGEST_SKEW_S = 30.0

Fault = Callable[[Machines, np.random.Generator], AbstractAsyncContextManager[str]]


def _one_of(rng: np.random.Generator, names: tuple[str, ...]) -> str:
    return names[rng.integers(len(names))]


@asynccontextmanager
async def killed(machines: Machines, rng: np.random.Generator) -> AsyncGenerator[str, None]:
    """A server or service, which starts again. Not the executor: while a node is gone, the pool has no space at all."""
    name = _one_of(rng, (*SERVERS, *SERVICES))
    machines.kill(name)
    yield name
    machines.start(name)


@asynccontextmanager
async def paused(machines: Machines, rng: np.random.Generator) -> AsyncGenerator[str, None]:
    name = _one_of(rng, (*SERVERS, *SERVICES, EXECUTOR))
    machines.pause(name)
    yield name
    machines.resume(name)


@asynccontextmanager
async def partitioned(machines: Machines, rng: np.random.Generator) -> AsyncGenerator[str, None]:
    """Two random halves do not hear each other, or only one does not hear the other."""
    left, right = _halves(machines, rng)
    machines.network.drop(left, right)
    one_way = bool(rng.random() < 0.4)
    if not one_way:
        machines.network.drop(right, left)
    yield f"{' '.join(left)} {'->' if one_way else '|'} {' '.join(right)}"
    machines.network.heal()


@asynccontextmanager
async def bridged(machines: Machines, rng: np.random.Generator) -> AsyncGenerator[str, None]:
    """Two halves do not hear each other; one server hears both."""
    bridge = _one_of(rng, SERVERS)
    left, right = ([name for name in half if name != bridge] for half in _halves(machines, rng))
    machines.network.drop(left, right)
    machines.network.drop(right, left)
    yield f"{' '.join(left)} | {' '.join(right)}, bridge {bridge}"
    machines.network.heal()


@asynccontextmanager
async def skewed(machines: Machines, rng: np.random.Generator) -> AsyncGenerator[str, None]:
    """The clock of a service is wrong, by less or more than the slack of promises."""
    name, offset_s = _one_of(rng, SERVICES), float(rng.choice((-1, 1)) * _LARGEST_SKEW_S ** rng.uniform(-0.5, 1))
    machines.set_clock(name, offset_s)
    yield f"{name} {offset_s:+.2f} s"
    machines.set_clock(name, 0.0)


@asynccontextmanager
async def full_disk(machines: Machines, rng: np.random.Generator) -> AsyncGenerator[str, None]:
    name = _one_of(rng, SERVERS)
    machines.fill_disk(name)
    yield name
    machines.empty_disk(name)


@asynccontextmanager
async def slow_disk(machines: Machines, rng: np.random.Generator) -> AsyncGenerator[str, None]:
    name, delay_s = _one_of(rng, SERVERS), float(rng.uniform(*_SLOW_SYNC_S))
    tracer = machines.slow_down_disk(name, delay_s)
    yield f"{name} {delay_s:.2f} s"
    tracer.terminate()
    await asyncio.to_thread(tracer.wait)


FAULTS: dict[str, Fault] = {
    "kill": killed,
    "pause": paused,
    "partition": partitioned,
    "bridge": bridged,
    "skew": skewed,
    "full disk": full_disk,
    "slow disk": slow_disk,
}


def _halves(machines: Machines, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """No half is empty."""
    names = [str(name) for name in rng.permutation(list(machines.network.address))]
    middle = int(rng.integers(1, len(names)))
    return names[:middle], names[middle:]
