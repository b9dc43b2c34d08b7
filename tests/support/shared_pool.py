"""One pool on one bus, as the bus's contract tests use it."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import Bus

POOL = "pool-a"
PLAN = f"ef.ledger.{POOL}.plan"
SUBMIT = f"ef.submit.tenant.{POOL}"
Connect = Callable[..., Awaitable[Bus]]  # another client of the same bus; takes its StreamLimits
T = TypeVar("T")
_MARKER = 1 << 39  # the index of a result that no test expects
_marker_ids = itertools.count()


def job(number: int) -> str:
    """Subject of the events of a job."""
    return f"ef.ledger.{POOL}.job.j{number}"


async def read_all(bus: Bus, *, after_sequence: int = 0) -> list[LedgerRecord]:
    up_to = await bus.last_sequence(POOL)
    batches = [batch async for batch in bus.read(POOL, after_sequence=after_sequence, up_to=up_to)]
    return [stored for batch in batches for stored in batch]


async def next_of(messages: AsyncIterator[T]) -> T:
    async with asyncio.timeout(60):
        return await anext(messages)


async def stored_results(bus: Bus, load_id: str, *, pool: str = POOL) -> list[LedgerRecord]:
    """The messages with results of a load that are stored now."""
    marker = subjects.results(pool, load_id, _MARKER, _MARKER)
    last = await bus.append(marker, b"", message_id=f"marker-{next(_marker_ids)}")
    found: list[LedgerRecord] = []
    async with aclosing(bus.results(pool, load_id)) as results:
        async for batch in results:
            found += [stored for stored in batch if stored.subject != marker]
            if batch[-1].sequence >= last:
                break
    return found


async def add_result(bus: Bus, load_id: str, index: int, data: bytes | None = None, *, pool: str = POOL) -> int:
    """Store a result of one task; its data is the index unless given."""
    subject = subjects.results(pool, load_id, index, index)
    data = b"%d" % index if data is None else data
    return await bus.append(subject, data, message_id=f"{pool}-{load_id}-{index}-{hash(data)}")
