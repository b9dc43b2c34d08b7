"""Reading a stream of the bus in memory."""

import asyncio
from collections.abc import Callable
from itertools import islice

from elasticflow.shared.errors import LedgerBroken, LedgerTruncated
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import MAX_BATCH, Batches
from elasticflow.shared.runtime.bus.memory.broker import MemoryBroker
from elasticflow.shared.runtime.bus.memory.link import Link
from elasticflow.shared.runtime.process.clock import Clock


async def follow_stream(
    broker: MemoryBroker,
    stream_name: str,
    selection: str,
    after_sequence: int,
    clock: Clock,
    link: Link,
    check_open: Callable[[], None],
) -> Batches:
    """See `Bus.follow`, which reads all subjects of a ledger, and `Bus.results`, which reads a selection."""
    stream = broker.stream(stream_name)
    if stream_name.startswith(streams.LEDGER_PREFIX):
        if after_sequence > stream.last_sequence:
            raise LedgerTruncated(streams.pool_of(selection), after_sequence, stream.last_sequence)
        if after_sequence + 1 < stream.first_sequence:
            raise LedgerBroken(streams.pool_of(selection), after_sequence + 1, stream.first_sequence)
    last = after_sequence
    while True:
        await asyncio.sleep(0)  # as over a network, other tasks run meanwhile
        check_open()
        batch = tuple(islice(stream.matching(selection, last), MAX_BATCH))
        last = batch[-1].sequence if len(batch) == MAX_BATCH else max(last, stream.last_sequence)
        if batch:
            await link.delivery()
            yield batch
        else:
            await stream.bell.wait(clock)
