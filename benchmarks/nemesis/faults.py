"""Faults, one at a time, each for some seconds. A random generator chooses them and where they happen."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import numpy as np

from benchmarks.nemesis.machines import EXECUTOR, SERVICES, Machines
from benchmarks.partitions.servers import SERVERS

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
