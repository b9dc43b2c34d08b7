"""`python -m benchmarks.engine.soak`: 500 switches, losses and stops of one job's workers, and what they leave behind.

One worker, the veteran, lives through all of it, so that leaks would accumulate in it. Its footprint is measured after
each event. All footprints are measured at rest with two workers, before most events and after the last, and must be
equal.
"""

import asyncio
import contextlib
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import psutil
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engine.crew import Crew
from benchmarks.engine.parts import table_of
from benchmarks.engine.schedules import JOBS, spec_of
from benchmarks.engine.stage import CHANCES, Kind, Player, schedule, stage
from benchmarks.engine.transports import TransportName
from benchmarks.report import today
from elasticflow.shared.runtime.process.logs import configure_logs

# --- the resources that the engine uses ----------------------------------------------------------------


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


# --- the soak ------------------------------------------------------------------------------------------


_STEP_S = 0.1  # of one worker: slow steps leave the cores to the switches, which are measured
_REST_S = 2.5  # until released objects are gone
_LOOKS, _MOST_LOOKS, _LOOK_S = 8, 400, 0.07
_NUM_THREADS = 8
_WARM_UP = 10  # one in so many events precedes the first rest: memory that is touched for the first time grows once
_CHANCES: Mapping[Kind, float] = {
    kind: chance for kind, chance in CHANCES.items() if kind not in ("kill all", "suspend")
}


async def soak(
    num_events: int, *, seed: int = 0, virtual_nodes: int = 8, transport: TransportName = TransportName.GLOO
) -> dict[str, Any]:
    """Raises AssertionError if it does not finish."""
    began_s, shared_before = time.monotonic(), shared_memory()
    await _start_all_threads()
    events = schedule(seed, num_events=num_events, chances=_CHANCES)[1:]
    warm_up = num_events // _WARM_UP
    weights: list[Footprint] = []
    with tempfile.TemporaryDirectory() as record:
        async with stage() as there:
            crew = there.crew("soak", spec_of(JOBS[virtual_nodes](), Path(record), step_s=_STEP_S, transport=transport))
            player = Player(crew, seed, spares_oldest=True)
            await crew.start(2)
            veteran = psutil.Process(crew.processes[0].handle.pid)
            server = veteran.parent()
            assert server is not None
            for event in events[:warm_up]:
                await player.happen(event)
            before = await _at_rest(crew, server)
            for event in events[warm_up:]:
                await player.happen(event)
                weights.append(footprint([veteran]))
            after = await _at_rest(crew, server, before)
            iterations = crew.members[0].iteration
            assert await crew.suspend(), "all members stop"
            left = server.children(recursive=True)
    return {
        "events": dict(sorted(Counter(event.kind for event in events).items())),
        "warm_up": warm_up,
        "killed": player.killed,
        "generations": crew.generation,
        "iterations": iterations,
        "took_s": round(time.monotonic() - began_s),
        "processes_left": len(left),
        "shared_memory_left": sorted(shared_memory() - shared_before),
        "at_rest": {who: {"before": asdict(before[who]), "after": asdict(after[who])} for who in before},
        "columns": ["event", "workers", *(field.name for field in fields(Footprint))],
        "veteran": [
            " ".join(map(str, (event.kind, event.size, *asdict(weight).values())))
            for event, weight in zip(events[warm_up:], weights, strict=True)
        ],
    }


async def _start_all_threads() -> None:
    """Start all threads of `asyncio.to_thread` here, which otherwise start one by one, when many are needed at once."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_NUM_THREADS))
    all_run = threading.Barrier(_NUM_THREADS)
    await asyncio.gather(*(asyncio.to_thread(all_run.wait) for _ in range(_NUM_THREADS)))


async def _at_rest(
    crew: Crew, server: psutil.Process, than: Mapping[str, Footprint] | None = None
) -> dict[str, Footprint]:
    """The veteran is rank 0 of two, so that the numbers are comparable. than: the footprints to compare with."""
    veteran = crew.processes[0]
    assert await crew.switch([veteran, None]), "no event disturbs it"
    await asyncio.sleep(_REST_S)
    who: dict[str, Callable[[], list[psutil.Process]]] = {
        "veteran": lambda: [psutil.Process(veteran.handle.pid)],
        "all below the fork server": lambda: server.children(recursive=True),
        "fork server": lambda: [server],
        "launcher": lambda: [psutil.Process()],
    }
    return {name: await _lightest(them, than[name] if than else None) for name, them in who.items()}


async def _lightest(processes: Callable[[], list[psutil.Process]], than: Footprint | None) -> Footprint:
    """The lightest of several samples, taken until it is not above `than`.

    A checkpoint being written needs a thread and a file for a moment, a connection to a dead worker some seconds.
    """
    looks: list[Footprint] = []
    most = _LOOKS if than is None else _MOST_LOOKS
    while len(looks) < most and not (than is not None and looks and _weight(looks[-1]) <= _weight(than)):
        looks.append(footprint(processes()))
        await asyncio.sleep(_LOOK_S)
    return min(looks, key=_weight)


def _weight(look: Footprint) -> tuple[int, int]:
    return look.threads, look.descriptors


def table(result: Mapping[str, Any]) -> Table:
    columns = [field.name for field in fields(Footprint)]
    shown = table_of(f"At rest, before and after {len(result['veteran'])} events", "", "", *columns)
    for who, weights in result["at_rest"].items():
        for when, weight in weights.items():
            shown.add_row(who, when, *(str(weight[column]) for column in columns))
    return shown


def main(
    events: Annotated[int, typer.Option(min=1)] = 500,
    seed: int = 0,
    transport: Annotated[TransportName, typer.Option(help="What moves the workers' gradients.")] = TransportName.GLOO,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")] = None,
) -> None:
    configure_logs(level="error")
    result = {
        "date": today(),
        "torch": torch.__version__,
        "seed": seed,
        "transport": transport.value,
        **asyncio.run(soak(events, seed=seed, transport=transport)),
    }
    Console(width=140).print(table(result))
    if out:
        out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
