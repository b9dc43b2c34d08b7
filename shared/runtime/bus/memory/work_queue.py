"""The work queue of the bus in memory."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elasticflow.shared.runtime.bus.contract import WorkItem
from elasticflow.shared.runtime.bus.memory.broker import Consumer
from elasticflow.shared.runtime.bus.memory.link import FaultSource, Link
from elasticflow.shared.runtime.process.clock import Clock


class MemoryWorkQueue:
    """See `bus.WorkQueue`. check_open raises once the bus is closed."""

    def __init__(
        self,
        consumer: Consumer,
        clock: Clock,
        check_open: Callable[[], None],
        faults: FaultSource,
        link: Link,
    ) -> None:
        self._consumer = consumer
        self._clock = clock
        self._check_open = check_open
        self._faults = faults
        self._link = link

    async def pull(self, max_messages: int, timeout_s: float) -> list[WorkItem]:
        deadline_s = self._clock.now_s() + timeout_s
        await asyncio.sleep(0)  # as over a network, other tasks run meanwhile
        while True:
            self._check_open()
            now_s = self._clock.now_s()
            if taken := self._consumer.take(max_messages, now_s):
                items: list[WorkItem] = [self._item(sequence) for sequence in taken]
                await self._link.delivery()
                return items
            if now_s >= deadline_s:
                return []
            wake_s = min(deadline_s, self._consumer.next_due_s())
            await self._consumer.stream.bell.wait(self._clock, wake_s)

    async def close(self) -> None:
        """Nothing arrives unasked here."""

    def _item(self, sequence: int) -> WorkItem:
        stream = self._consumer.stream
        if self._faults.is_duplicated():
            self._consumer.postpone(sequence, self._clock.now_s())
        return MemoryWorkItem(
            subject=stream.messages[sequence].subject,
            data=stream.messages[sequence].data,
            headers=stream.headers[sequence],
            sequence=sequence,
            stored_at_s=stream.messages[sequence].stored_at_s,
            num_delivered=self._consumer.num_delivered[sequence],
            consumer=self._consumer,
            clock=self._clock,
            link=self._link,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWorkItem:
    """See `bus.WorkItem`."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    stored_at_s: float
    num_delivered: int
    consumer: Consumer
    clock: Clock
    link: Link

    async def ack(self) -> None:
        self.link.send(lambda: self.consumer.settle(self.sequence))

    async def nak(self, delay_s: float = 0.0) -> None:
        self.link.send(lambda: self._postpone(delay_s))

    async def in_progress(self) -> None:
        self.link.send(lambda: self._postpone(self.consumer.ack_wait_s))

    async def term(self) -> None:
        self.link.send(lambda: self.consumer.settle(self.sequence))

    def _postpone(self, delay_s: float) -> None:
        self.consumer.postpone(self.sequence, self.clock.now_s() + delay_s)
