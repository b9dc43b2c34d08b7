"""One pool on one bus, as the bus's contract tests use it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import Bus

POOL = "pool-a"
PLAN = f"ef.ledger.{POOL}.plan"
SUBMIT = f"ef.submit.tenant.{POOL}"
Connect = Callable[..., Awaitable[Bus]]  # another client of the same bus; takes its StreamLimits
T = TypeVar("T")


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
