"""One seed: clients at work, faults for a while, then none. Are all replies those of one pool, is its ledger sound?

The command (arguments: seed, folder, seconds of faults) needs namespaces of its own: see `network.ISOLATED`. It prints
one JSON object.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.nemesis.clients import CONFIG, SPEC, History
from benchmarks.nemesis.linearizability import (
    Amend,
    Call,
    Cancel,
    Held,
    Operation,
    Quote,
    Submit,
    exclusive_pool,
    linearization,
)
from benchmarks.nemesis.machines import EXECUTOR, FAULTS, NODE, POOL, SERVICES, Machines
from benchmarks.partitions.network import SERVERS
from elasticflow.client.client import Client
from elasticflow.client.ledger import write_ledger
from elasticflow.client.operator_decisions import configure
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.export import read_export
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.replay.recorded_ledger import Entry, read_entries

NUM_CLIENTS = 4
READY_TIMEOUT_S = 300.0
QUIET_S = 3.0  # before the first fault, and after the last one
_FAULT_S = (2.0, 12.0)
_PAUSE_S = (0.5, 4.0)
_QUOTE_AGES_S = (0.0, 0.05, 0.2, 1.0, 5.0, 15.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """faults: each in words. calls, unanswered: numbers by kind. messages: of the ledger. quotes_age_s: quotes told the
    truth of at most so long before; None: the calls are not linearizable with any such time. problems: a sentence each,
    and the calls that no order explains; none in a sound run."""

    seed: int
    faults: tuple[str, ...]
    calls: dict[str, int]
    unanswered: dict[str, int]
    messages: int
    quotes_age_s: float | None
    problems: tuple[str, ...]


async def run(seed: int, folder: Path, faults_s: float) -> Result:
    machines, rng = Machines(folder), np.random.default_rng(seed)
    await _open(machines)
    history = History(machines.url)
    ends_s = time.monotonic() + faults_s + 2 * QUIET_S
    async with asyncio.TaskGroup() as tasks:
        for number, generator in enumerate(rng.spawn(NUM_CLIENTS)):
            tasks.create_task(history.client(number, generator, ends_s))
        await asyncio.sleep(QUIET_S)
        faults = await _faults(machines, rng, time.monotonic() + faults_s)
    await history.read_at_last()
    entries = await _ledger(machines.url, folder / "ledger")
    operations, age_s = history.operations, quotes_age_s(history.operations)
    return Result(
        seed=seed,
        faults=tuple(faults),
        calls=_numbers(operations, answered=True),
        unanswered=_numbers(operations, answered=False),
        messages=len(entries),
        quotes_age_s=age_s,
        problems=(
            *void(operations),
            *violations(entries),
            *(() if age_s is not None else _unexplained(operations)),
            *(f"{name} ended by itself: {last_line}" for name, last_line in machines.ended().items()),
        ),
    )


async def _ledger(url: str, file: Path) -> tuple[Entry, ...]:
    async with Client.connect(Endpoint(nats_url=url, pool=POOL)) as client:
        await write_ledger(client, file)
    with file.open("rb") as export:
        return read_entries(read_export(export))


async def _open(machines: Machines) -> None:
    """Return once the pool has its node, and admission has answered a quote."""
    for server in SERVERS:
        machines.start(server)
    async with asyncio.timeout(READY_TIMEOUT_S):
        await _make_pool(machines.url)
        for name in (*SERVICES, EXECUTOR):
            machines.start(name)
        await _node_joined(machines.url)
        await _admission_answers(machines.url)


async def _make_pool(url: str) -> None:
    while True:
        try:
            await configure(url, POOL, CONFIG, SystemClock(), stream_replicas=3)
        except Retry:
            await asyncio.sleep(0.5)
        else:
            return


async def _node_joined(url: str) -> None:
    async with Client.connect(Endpoint(nats_url=url, pool=POOL)) as client:
        while not _is_ready(await client.state()):
            await asyncio.sleep(0.3)


async def _admission_answers(url: str) -> None:
    """Wait until admission answers. Without compiled loops this takes minutes: a run of less would show nothing."""
    async with Client.connect(Endpoint(nats_url=url, pool=POOL), tenant="lab") as client:
        while True:
            try:
                await client.quote(SPEC)
            except Retry:
                await asyncio.sleep(0.5)
            else:
                return


def _is_ready(state: PoolState) -> bool:
    return NODE in state.nodes and state.nodes[NODE].alive


async def _faults(machines: Machines, rng: np.random.Generator, ends_s: float) -> list[str]:
    """Let one fault follow another until this instant of the monotonic clock."""
    told: list[str] = []
    kinds = list(FAULTS)
    while time.monotonic() < ends_s:
        kind = kinds[rng.integers(len(kinds))]
        for_s = float(rng.uniform(*_FAULT_S))
        async with FAULTS[kind](machines, rng) as where:
            told.append(f"{kind} {for_s:.1f} s: {where}")
            await asyncio.sleep(for_s)
        await asyncio.sleep(float(rng.uniform(*_PAUSE_S)))
    return told


def void(operations: Sequence[Operation[Call]]) -> list[str]:
    """The problem of a run in which no command was decided: it shows nothing."""
    if any(isinstance(each.call, Submit | Amend | Cancel) and each.reply is not None for each in operations):
        return []
    return ["void: no command was decided"]


def quotes_age_s(operations: Sequence[Operation[Call]]) -> float | None:
    """The least age, of some, with which all quotes are explained: a replica answers from what it has folded."""
    for age_s in _QUOTE_AGES_S:
        aged = [
            replace(each, invoked_s=each.invoked_s - age_s) if each.call == Quote() else each for each in operations
        ]
        if linearization(aged, exclusive_pool, Held()) is not None:
            return age_s
    return None


def _unexplained(operations: Sequence[Operation[Call]]) -> list[str]:
    commands = [each for each in operations if each.call != Quote()]
    is_quotes_fault = linearization(commands, exclusive_pool, Held()) is not None
    return [
        "quotes told what never was:" if is_quotes_fault else "not linearizable:",
        *(f"{each.invoked_s:.3f} to {each.returned_s:.3f} {each.call} {each.reply}" for each in operations),
    ]


def _numbers(operations: Sequence[Operation[Call]], *, answered: bool) -> dict[str, int]:
    kinds = [type(each.call).__name__ for each in operations if (each.reply is not None) == answered]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


if __name__ == "__main__":
    _, number, where, seconds = sys.argv
    print(json.dumps(asdict(asyncio.run(run(int(number), Path(where), float(seconds))))))
