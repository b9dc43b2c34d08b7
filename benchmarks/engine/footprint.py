"""The resources that the engine uses: processes, threads, file descriptors, ports, shared memory, memory."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The footprint of several processes together. memory_mib: private memory, without shared pages."""

    processes: int
    threads: int
    descriptors: int
    connections: int  # TCP, by their ends here
    ports: int  # TCP, listening
    memory_mib: float


def footprint(processes: Sequence[psutil.Process]) -> Footprint:
    """The footprint of those processes that run."""
    found: list[tuple[int, int, int, int, float]] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sockets = [connection.status for connection in process.net_connections("tcp")]
            ports = sockets.count(psutil.CONN_LISTEN)
            memory_mib = process.memory_full_info().uss / 2**20
            threads, descriptors = process.num_threads(), process.num_fds()
            found.append((threads, descriptors, len(sockets) - ports, ports, memory_mib))
    threads, descriptors, connections, ports, memory = zip(*found, strict=True) if found else [(0,)] * 5
    return Footprint(
        processes=len(found),
        threads=sum(threads),
        descriptors=sum(descriptors),
        connections=sum(connections),
        ports=sum(ports),
        memory_mib=round(sum(memory), 2),
    )


def shared_memory() -> frozenset[str]:
    """Names in it, of the whole machine."""
    return frozenset(path.name for path in _SHARED_MEMORY.iterdir()) if _SHARED_MEMORY.is_dir() else frozenset()
