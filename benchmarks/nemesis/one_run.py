"""One seed: clients at work, faults for a while, then none. Are all replies those of one pool, is its ledger sound?

The command (arguments: seed, folder, seconds of faults) needs namespaces of its own: see `network.ISOLATED`. It prints
one JSON object.

Clients submit, amend, cancel and quote, and write down what they were told.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.nemesis.linearizability import (
    FIRST_ITERATIONS,
    Amend,
    Call,
    Cancel,
    Held,
    Operation,
    Quote,
    Read,
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
from elasticflow.shared.messages.events import JobAdmitted, JobAmended, JobCancelled
from elasticflow.shared.messages.export import read_export
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.replay.recorded_ledger import Entry, read_entries

# --- clients -------------------------------------------------------------------------------------------


RATE = 40.0  # iterations/s on the only GPU
DEADLINE_IN_S = 36_000.0
CONFIG = PoolConfig(
    admission="first-come",  # the price of a job is another matter
    curves={"steps/b8": {1: RATE}},
    throughput_margin=0.5,
    resize_cost_s=1.0,
    heartbeat_timeout_s=600.0,  # a lost node would leave no space
    stall_timeout_s=3_600.0,
)
SPEC = JobSpec(
    training_function="testbed.user_code.tiny_jobs:Steps",
    model_name="steps",
    global_batch_size=8,
    max_iterations=FIRST_ITERATIONS,  # 0.6 of what the GPU does until the deadline, at half its speed
    deadline_in_s=DEADLINE_IN_S,
)
_MOST_AMENDED = 500_000  # less than the GPU can do, and more than half of it
_LEAST_AMENDED = 400_000
_REPLY_TIMEOUT_S = 60.0
_QUOTE_TIMEOUT_S = 5.0
_CALL_PAUSE_S = 0.3
_WEIGHTS = (0.3, 0.2, 0.2, 0.3)


class History:
    """The history of all clients of one pool."""

    def __init__(self, url: str) -> None:
        self.operations: list[Operation[Call]] = []
        self._endpoint = Endpoint(nats_url=url, pool=POOL)
        self._job_ids = ["none"]
        self._admitted = "none"  # the last one that was reported to a client

    async def client(self, number: int, rng: np.random.Generator, until_s: float) -> None:
        """One call after another, until this instant of the monotonic clock."""
        async with Client.connect(self._endpoint, tenant="lab") as client:
            while time.monotonic() < until_s:
                call = self._chosen(number, rng)
                await self._record(call, self._reply(client, call))
                await asyncio.sleep(float(rng.exponential(_CALL_PAUSE_S)))

    async def read_at_last(self) -> None:
        """What the ledger holds once all calls have returned."""
        async with Client.connect(self._endpoint, tenant="lab") as client:
            await self._record(Read(), _live_job(client))

    def _chosen(self, number: int, rng: np.random.Generator) -> Call:
        recent = self._job_ids[-1 - min(int(rng.geometric(0.6)) - 1, len(self._job_ids) - 1)]
        job_id = self._admitted if rng.random() < 0.6 else recent
        match rng.choice(4, p=_WEIGHTS):
            case 0:
                self._job_ids.append(f"job-{number}-{len(self._job_ids)}")
                return Submit(self._job_ids[-1])
            case 1:
                return Amend(job_id, int(rng.integers(_LEAST_AMENDED, _MOST_AMENDED)))
            case 2:
                return Cancel(job_id)
            case _:
                return Quote()

    async def _record(self, call: Call, reply: Awaitable[object]) -> None:
        invoked_s = time.monotonic()
        try:
            told = await reply
        except Retry:
            if not isinstance(call, Quote):  # one without an answer changes nothing
                self.operations.append(Operation(call=call, reply=None, invoked_s=invoked_s))
            return
        self.operations.append(Operation(call=call, reply=told, invoked_s=invoked_s, returned_s=time.monotonic()))

    async def _reply(self, client: Client, call: Call) -> object:
        match call:
            case Submit(job_id=job_id):
                decision = await client.submit(SPEC, job_id=job_id, timeout=_REPLY_TIMEOUT_S)
                if isinstance(decision, JobAdmitted):
                    self._admitted = job_id
                return isinstance(decision, JobAdmitted)
            case Amend(job_id=job_id, iterations=iterations):
                reply = await client.amend(job_id, max_iterations=iterations, timeout=_REPLY_TIMEOUT_S)
                return isinstance(reply, JobAmended)
            case Cancel(job_id=job_id):
                return isinstance(await client.cancel(job_id, timeout=_REPLY_TIMEOUT_S), JobCancelled)
            case Quote():
                quoted = await client.quote(SPEC, timeout=_QUOTE_TIMEOUT_S)
                earliest_s = quoted.earliest_deadline_s
                return earliest_s is not None and earliest_s - quoted.at_s < DEADLINE_IN_S
            case Read():
                return await _live_job(client)


async def _live_job(client: Client) -> tuple[str, int]:
    state = await client.state()
    live = list(state.live_jobs.values())
    assert len(live) <= 1, f"the pool has space for one job, and holds {[job.job_id for job in live]}"
    return (live[0].job_id, spec_of(live[0]).max_iterations) if live else ("", 0)


# --- one seed ------------------------------------------------------------------------------------------


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
