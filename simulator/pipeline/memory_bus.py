"""The bus within one process: for tests and for simulations, with faults drawn from a seed.

Many `MemoryBus` may share one broker, as processes share a server: closing one is the death of that process.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import ClassVar, TypeVar

from elasticflow.shared.errors import (
    BadSettings,
    BusClosed,
    DamagedObject,
    LedgerBroken,
    LedgerTruncated,
    MaybeStored,
    NoResponder,
    NotFound,
    RequestTimeout,
    ServerTooSmall,
    StorageFull,
    TooLarge,
    Unavailable,
)
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import (
    ACK_WAIT_S,
    DEFAULT_TIMEOUT_S,
    MAX_BATCH,
    REVISION_HEADER,
    TASK_ACK_WAIT_S,
    Batches,
    Bus,
    LedgerEnd,
    Message,
    Value,
    WorkItem,
    WorkQueue,
)
from elasticflow.shared.runtime.bus.streams import (
    MAX_PAYLOAD_BYTES,
    StreamLimits,
    check_replicas,
    stream_configs,
)
from elasticflow.shared.runtime.process.clock import Clock, SystemClock
from elasticflow.simulator.pipeline.memory_broker import Consumer, Listener, MemoryBroker
from elasticflow.simulator.pipeline.memory_link import DelayedLink, DirectLink, FaultSource, Link, LinkFaults

# --- A subscription of the bus in memory ---------------------------------------------------------------


class MemorySubscription:
    """See `bus.Subscription`. ignore: the client takes no more messages for this listener."""

    def __init__(self, listener: Listener, clock: Clock, ignore: Callable[[Listener], None]) -> None:
        self._listener = listener
        self._clock = clock
        self._ignore = ignore

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._listener.messages:
            if self._listener.closed:
                raise StopAsyncIteration
            await self._listener.bell.wait(self._clock)
        return self._listener.take()

    async def close(self) -> None:
        self._ignore(self._listener)


# --- bus -----------------------------------------------------------------------------------------------

T = TypeVar("T")

_URL = "memory://"


class MemoryBus(Bus):
    """See `Bus`. delayed: the client reaches the broker over a `DelayedLink`, on the time of the event loop."""

    FIRST_RETRY_S: ClassVar[float] = 0.0
    LAST_RETRY_S: ClassVar[float] = 0.0

    def __init__(
        self,
        broker: MemoryBroker | None = None,
        *,
        clock: Clock | None = None,
        faults: FaultSource | None = None,
        delayed: bool = False,
        limits: StreamLimits | None = None,
    ) -> None:
        self.broker = broker or MemoryBroker()
        self._limits = limits or StreamLimits()
        self._clock = clock or SystemClock()
        self._faults = faults or FaultSource(LinkFaults(), None)
        self.link: Link = DelayedLink(self._faults) if delayed else DirectLink(self._faults)
        self._listeners: list[Listener] = []
        self._inboxes = itertools.count()
        self._closed = False

    # -- pools

    async def ensure_pool(self, pool: str) -> None:
        self._check_open()
        streams.check_pool(pool)
        if self.broker.max_payload_bytes < MAX_PAYLOAD_BYTES:
            raise ServerTooSmall(_URL, "max_payload", self.broker.max_payload_bytes, MAX_PAYLOAD_BYTES)
        wanted = self._limits.replicas
        if pool not in self.broker.pools() and wanted > 1:
            raise BadSettings((f"EF_REPLICAS={wanted}, but {_URL} is a single server: set EF_REPLICAS=1",))
        self.broker.ensure_pool(pool, self._limits)
        check_replicas({config["name"]: 1 for config in stream_configs(pool, self._limits)}, wanted)

    async def pool_exists(self, pool: str) -> bool:
        return pool in self.broker.pools()

    async def pools(self) -> tuple[str, ...]:
        return self.broker.pools()

    # -- kept messages

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str,
        expected_last_subject_sequence: int | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> int:
        self._check_size(subject, data)
        store = partial(self._store, subject, data, message_id, headers or {}, expected_last_subject_sequence)
        return await self.link.call(store, timeout_s, MaybeStored(subject, message_id), fallible=True)

    def _store(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str], expected: int | None
    ) -> int:
        if self._faults.is_storage_full():
            raise StorageFull(subject, "drawn")
        stream = self.broker.route(subject)
        sequence = stream.append(subject, data, message_id, headers, expected, self._clock.now_s())
        if expected is None and self._faults.is_duplicated():

            def store_again() -> None:
                stream.known_ids.pop(message_id, None)
                stream.append(subject, data, message_id, headers, None, self._clock.now_s())

            self.link.send_again(store_again)
        return sequence

    def follow(self, pool: str, *, after_sequence: int) -> Batches:
        return self._follow(streams.ledger_stream(pool), streams.ledger_subjects(pool), after_sequence)

    async def ledger_end(self, pool: str) -> LedgerEnd:
        self._check_open()

        def look() -> LedgerEnd:
            ledger = self.broker.ledger(pool)
            return LedgerEnd(sequence=ledger.last_sequence, at_s=self._clock.now_s(), first=ledger.first_sequence)

        return await self._ask(look)

    async def last_subject_sequence(self, subject: str) -> int:
        self._check_open()
        return await self._ask(lambda: self.broker.route(subject).last_sequence_of(subject))

    async def last_record(self, subject: str) -> LedgerRecord | None:
        self._check_open()

        def look() -> LedgerRecord | None:
            stream = self.broker.route(subject)
            return stream.messages.get(stream.last_sequence_of(subject))

        return await self._ask(look)

    async def delete_ledger(self, pool: str, *, up_to: int) -> None:
        self._check_open()
        await self._ask(lambda: self.broker.ledger(pool).purge(streams.ledger_subjects(pool), up_to=up_to))

    async def work(self, pool: str, consumer_name: str, *, ack_wait_s: float = ACK_WAIT_S) -> WorkQueue:
        self._check_open()
        return self._queue(streams.submit_stream(pool), consumer_name, streams.submit_subjects(pool), ack_wait_s)

    # -- padding loads

    async def tasks(self, pool: str, load: str, *, ack_wait_s: float = TASK_ACK_WAIT_S) -> WorkQueue:
        self._check_open()
        return self._queue(streams.task_stream(pool), load, subjects.tasks(pool, load), ack_wait_s)

    def results(self, pool: str, load: str, *, after_sequence: int = 0) -> Batches:
        return self._follow(streams.result_stream(pool), subjects.every_result(pool, load), after_sequence)

    async def result_subjects(self, pool: str, *, after_sequence: int) -> Batches:
        async with aclosing(
            self._follow(streams.result_stream(pool), subjects.every_result(pool), after_sequence)
        ) as batches:
            async for batch in batches:
                yield tuple(replace(record, data=b"") for record in batch)

    async def delete_results(self, pool: str, load: str, *, up_to: int) -> None:
        self._check_open()
        stream, selection = streams.result_stream(pool), subjects.every_result(pool, load)
        await self._ask(lambda: self.broker.stream(stream).purge(selection, up_to=up_to))

    async def delete_load(self, pool: str, load: str, *, with_results: bool) -> None:
        self._check_open()

        def delete() -> None:
            self.broker.forget_consumer(streams.task_stream(pool), load)
            self.broker.stream(streams.task_stream(pool)).purge(subjects.tasks(pool, load))
            if with_results:
                self.broker.stream(streams.result_stream(pool)).purge(subjects.every_result(pool, load))

        await self._ask(delete)

    # -- messages that are not stored

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        self._check_size(subject, data)
        message = Message(subject=subject, data=data, reply=reply)
        self.link.send(lambda: self._deliver(message))

    async def subscribe(self, subject: str, queue: str = "") -> MemorySubscription:
        self._check_open()
        return MemorySubscription(self._listen(subject, queue), self._clock, self._ignore)

    async def request(self, subject: str, data: bytes, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        self._check_size(subject, data)
        inbox = self._listen(f"_INBOX.{id(self)}.{next(self._inboxes)}", "")
        deadline_s = self._clock.now_s() + timeout_s
        try:
            if not self._deliver(Message(subject=subject, data=data, reply=inbox.pattern)):
                raise NoResponder(subject)
            while not inbox.messages:
                if self._clock.now_s() >= deadline_s:
                    raise RequestTimeout(subject, timeout_s)
                await inbox.bell.wait(self._clock, deadline_s)
                self._check_open()
            return inbox.messages[0].data
        finally:
            self._ignore(inbox)

    # -- objects and values

    async def put_object(self, bucket: str, name: str, data: bytes) -> None:
        self._check_open()
        if bucket not in self.broker.objects:
            raise NotFound(bucket, name)
        is_failed = self._faults.is_object_failed()
        if not (is_failed and self._faults.is_request_lost()):
            self.broker.objects[bucket][name] = data
            self.broker.object_times_s[bucket, name] = self._clock.now_s()
        if is_failed:
            raise Unavailable(_URL, "the object may be stored")

    async def get_object(self, bucket: str, name: str, *, max_bytes: int) -> bytes:
        self._check_open()
        self._check_read()
        data = self.broker.objects.get(bucket, {}).get(name)
        if data is None:
            raise NotFound(bucket, name)
        if len(data) > max_bytes:
            raise DamagedObject(bucket, name, f"more than {max_bytes:,} bytes")
        return data

    async def delete_old_objects(self, bucket: str, *, before_s: float, is_needed: Callable[[str], bool]) -> int:
        self._check_open()
        objects, times_s = self.broker.objects[bucket], self.broker.object_times_s
        old = [name for name in objects if times_s.get((bucket, name), 0.0) < before_s and not is_needed(name)]
        for name in old:
            del objects[name]
        return len(old)

    async def get_value(self, bucket: str, key: str) -> Value | None:
        self._check_open()
        return await self._ask(lambda: self.broker.value(bucket, key, self._clock.now_s()))

    async def put_value(
        self,
        bucket: str,
        key: str,
        data: bytes,
        *,
        expected_revision: int | None = None,
        ttl_s: int | None = None,
    ) -> int:
        self._check_open()

        def put() -> int:
            now_s = self._clock.now_s()
            expires_s = float("inf") if ttl_s is None else now_s + ttl_s
            revision = self.broker.put_value(bucket, key, data, expected_revision, expires_s, now_s)
            if subject := streams.republished_on(bucket, key):
                self._deliver(Message(subject=subject, data=data, headers={REVISION_HEADER: str(revision)}))
            return revision

        return await self.link.call(put, DEFAULT_TIMEOUT_S, MaybeStored(streams.value_subject(bucket, key), ""))

    async def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        """The process of this client ends without a message."""
        self._closed = True
        self.link.close()
        for listener in list(self._listeners):
            self._ignore(listener)
        self.broker.wake_all()

    # -- inside

    def _queue(self, stream: str, consumer_name: str, selection: str, ack_wait_s: float) -> WorkQueue:
        consumer = self.broker.consumer(stream, consumer_name, selection, ack_wait_s)
        return MemoryWorkQueue(consumer, self._clock, self._check_open, self._faults, self.link)

    async def _follow(self, stream_name: str, selection: str, after_sequence: int) -> Batches:
        """See `Bus.follow`, which reads all subjects of a ledger, and `Bus.results`, which reads a selection."""
        stream = self.broker.stream(stream_name)
        if stream_name.startswith(streams.LEDGER_PREFIX):
            if after_sequence > stream.last_sequence:
                raise LedgerTruncated(streams.pool_of(selection), after_sequence, stream.last_sequence)
            if after_sequence + 1 < stream.first_sequence:
                raise LedgerBroken(streams.pool_of(selection), after_sequence + 1, stream.first_sequence)
        last = after_sequence
        while True:
            await asyncio.sleep(0)  # as over a network, other tasks run meanwhile
            self._check_open()
            batch = tuple(islice(stream.matching(selection, last), MAX_BATCH))
            last = batch[-1].sequence if len(batch) == MAX_BATCH else max(last, stream.last_sequence)
            if batch:
                await self.link.delivery()
                yield batch
            else:
                await stream.bell.wait(self._clock)

    async def _ask(self, operation: Callable[[], T]) -> T:
        def asked() -> T:
            self._check_read()
            return operation()

        return await self.link.call(asked, DEFAULT_TIMEOUT_S, Unavailable(_URL, "no answer"))

    def _check_read(self) -> None:
        if self._faults.is_read_failed():
            raise Unavailable(_URL, "the read failed")

    def _check_open(self) -> None:
        if self._closed:
            raise BusClosed("by us")

    def _check_size(self, subject: str, data: bytes) -> None:
        self._check_open()
        if len(data) > self.broker.max_payload_bytes:
            raise TooLarge(subject, len(data), self.broker.max_payload_bytes)

    def _listen(self, pattern: str, queue: str) -> Listener:
        listener = Listener(pattern, queue, self.link)
        self.broker.listeners.append(listener)
        self._listeners.append(listener)
        return listener

    def _ignore(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
            self.broker.listeners.remove(listener)
            listener.close()

    def _deliver(self, message: Message) -> int:
        """Hand the message to the subscribers that can be reached. Returns their number."""
        receivers = [each for each in self.broker.receivers(message.subject) if each.link.receives]
        for listener in receivers:
            for _ in range(2 if self._faults.is_duplicated() else 1):
                listener.put(message, self._faults.position(len(listener.messages)))
        return len(receivers)


# --- work queue ---------------------------------------------------------------------------------------
# The work queue of the bus in memory.


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
