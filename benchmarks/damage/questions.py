"""What clients and services ask a pool with damaged data, and what became of each answer."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.damage.recorded_pool import CLOCK, CODE, OBJECTS, POOL, VALUE, VALUES, RecordedPool
from elasticflow.client import doctor
from elasticflow.client.ledger import ARCHIVES, LedgerView
from elasticflow.client.operator_decisions import configure
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.ledger_bookmark import older_ledger
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.state.fold.ledger_fold import evolve
from elasticflow.shared.state.pool import PoolState

LIMIT_S = 10.0


class Outcome(StrEnum):
    """RIGHT: as before the damage. NAMED: an error that says what is wrong. WARNED: another answer, and a check of
    `eflow up` and `eflow doctor` names the damage. MISSING: NATS has dropped a value, as if it had never been stored;
    services write heartbeats, leases and views again, and a log lacks lines."""

    RIGHT = "right"
    NAMED = "named"
    WARNED = "warned"
    MISSING = "missing"
    SILENT = "another answer, and no word"
    CRASHED = "an unexpected exception"
    HANGS = "no answer in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """text: of the error, or what was answered."""

    question: str
    outcome: Outcome
    text: str = ""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.outcome in (Outcome.RIGHT, Outcome.NAMED, Outcome.WARNED, Outcome.MISSING)


Question = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def asked(pool: RecordedPool) -> AsyncIterator["dict[str, Question]"]:
    """The questions to a pool whose server runs here."""
    with pool.server() as server:
        bus = await connect_nats(server.url, name="asks")
        try:
            yield _questions(bus, server.url, pool.folder)
        finally:
            await bus.close()


async def answers(
    pool: RecordedPool, right: dict[str, Any] | None = None, *, limit_s: float = LIMIT_S
) -> tuple[list[Answer], dict[str, Any]]:
    """All answers, and what was answered. right: the answers before the damage. limit_s: for each answer."""
    found: list[Answer] = []
    values: dict[str, Any] = {}
    os.environ[ARCHIVES] = str(pool.archives)
    try:
        async with asked(pool) as questions:
            for name, question in questions.items():
                found.append(await _answer(name, question, values, right, limit_s))
    except ElasticFlowError as error:
        found.append(Answer(question="start of NATS", outcome=Outcome.NAMED, text=str(error)))
    finally:
        del os.environ[ARCHIVES]
    return _with_warnings(found, values), values


async def _answer(
    name: str, question: Question, values: dict[str, Any], right: dict[str, Any] | None, limit_s: float
) -> Answer:
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            values[name] = await question()
        same = right is None or values[name] == right[name]
        outcome, text = (Outcome.RIGHT if same else Outcome.SILENT), "" if same else repr(values[name])[:200]
    except TimeoutError:
        outcome, text = Outcome.HANGS, ""
    except ElasticFlowError as error:
        outcome, text = Outcome.NAMED, str(error)
    except Exception as error:
        outcome, text = Outcome.CRASHED, f"{type(error).__name__}: {error}"
    return Answer(question=name, outcome=outcome, text=text, seconds=time.monotonic() - began_s)


def _with_warnings(found: list[Answer], values: dict[str, Any]) -> list[Answer]:
    """Another answer is no silent one if `eflow doctor` names the damage, and of a ledger `eflow up`, too."""
    named = bool(values.get("doctor"))
    warned = named and bool(values.get("warning"))
    missing = {name for name, value in values.items() if name.startswith("value") and value is None}

    def judged(answer: Answer) -> Answer:
        if answer.outcome is not Outcome.SILENT:
            return answer
        if warned or answer.question in ("warning", "doctor") or (named and answer.question in missing):
            return replace(answer, outcome=Outcome.WARNED)
        return replace(answer, outcome=Outcome.MISSING) if answer.question in missing else answer

    return [judged(each) for each in found]


def _questions(bus: NatsBus, url: str, folder: Path) -> dict[str, Question]:
    ledger = LedgerView(bus, POOL)

    async def warning() -> str | None:
        return await older_ledger(bus, POOL, folder)

    async def configured() -> Any:
        return (await configure(url, POOL, None, CLOCK)).leave_s

    async def service() -> Any:
        """What a service does at its start: the newest snapshot, and the messages after it."""
        snapshot = await snapshot_store.load(bus, POOL, get_log("damage"))
        state = PoolState() if snapshot is None else snapshot.state
        last = await bus.last_sequence(POOL)
        async for batch in bus.read(POOL, after_sequence=state.sequence, up_to=last):
            for stored in batch:
                state = evolve(state, read_message(stored), stored.sequence)
        return _told(state)

    async def jobs() -> Any:
        return _told(await ledger.state())

    async def history() -> Any:
        return [stored.data async for stored, _ in ledger.entries(up_to=await ledger.last_sequence())]

    async def findings() -> list[str]:
        endpoint = Endpoint(nats_url=url, pool=POOL, data_dir=folder)
        found = await doctor.examine(endpoint, replicas=1, clock=CLOCK, environment={})
        return [each.problem for each in found if each.problem and each.check in ("connection", "streams")]

    asked: dict[str, Question] = {
        "doctor": findings,
        "warning": warning,
        "configure": configured,
        "service": service,
        "jobs": jobs,
        "history": history,
    }
    for bucket, name in OBJECTS:
        asked[f"object in {bucket}"] = lambda bucket=bucket, name=name: _object(bus, bucket, name)
    for bucket, key in VALUES:
        asked[f"value in {bucket}"] = lambda bucket=bucket, key=key: _value(bus, bucket, key)
    return asked


async def _object(bus: NatsBus, bucket: str, name: str) -> bool:
    return await bus.get_object(bucket, name, max_bytes=1 << 30) == CODE


async def _value(bus: NatsBus, bucket: str, key: str) -> bool | None:
    found = await bus.get_value(bucket, key)
    return None if found is None else found.data == VALUE


def _told(state: PoolState) -> Any:
    return (
        state.sequence,
        state.config.leave_s,
        sorted((node.node_id, node.incarnation) for node in state.nodes.values()),
    )
