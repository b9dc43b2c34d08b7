"""The state of a NATS server in plain Python values; each `MemoryBus` is one of its clients.

Time is the clock's, order is that of the calls: the same calls give the same history.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from elasticflow.shared.errors import StorageFull, TooLarge, UnknownStream, WrongExpectedSequence
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import MAX_INBOX, MAX_INBOX_BYTES, Message, Value, is_stored_as
from elasticflow.shared.runtime.bus.streams import MAX_COMMAND_BYTES, MAX_PAYLOAD_BYTES, StreamLimits, is_of_ledger
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.simulator.pipeline.memory_link import Link

# --- stored stream -------------------------------------------------------------------------------------
# Streams and consumers of the bus in memory: the messages that are kept, and who has which.

DUPLICATE_WINDOW_S = 120.0


class Bell:
    """Wakes all waiting tasks."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        for rung in waiting:
            if not rung.done():
                rung.set_result(None)

    async def wait(self, clock: Clock, until_s: float | None = None) -> None:
        """Wait for the next ring, or until until_s."""
        rung = asyncio.get_running_loop().create_future()
        self._waiting.append(rung)
        if until_s is None:
            await rung
            return
        timer = asyncio.ensure_future(clock.sleep_until(until_s))
        try:
            await asyncio.wait({rung, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            rung.cancel()
            timer.cancel()


def matches(pattern: str, subject: str) -> bool:
    """NATS' wildcards: * is one token, > all that follow (at least one)."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for index, want in enumerate(wanted):
        if want == ">":
            return len(tokens) > index
        if index >= len(tokens) or want not in ("*", tokens[index]):
            return False
    return len(tokens) == len(wanted)


@dataclass(slots=True)
class StoredStream:
    """Messages in order; those of a work queue leave it once settled.

    max_bytes: of all together. max_message_bytes: of each, with its headers. max_per_subject: messages on one subject.
    """

    subjects: str
    max_bytes: float = float("inf")
    max_message_bytes: float = float("inf")
    max_per_subject: float = float("inf")
    num_bytes: int = 0
    num_of_subject: Counter[str] = field(default_factory=Counter[str])
    messages: dict[int, LedgerRecord] = field(default_factory=dict)
    headers: dict[int, Mapping[str, str]] = field(default_factory=dict)
    last_sequence: int = 0
    last_of_subject: dict[str, int] = field(default_factory=dict)
    known_ids: dict[str, tuple[int, float]] = field(default_factory=dict)
    bell: Bell = field(default_factory=Bell)
    on_settle: Callable[[LedgerRecord], None] = lambda record: None

    @property
    def first_sequence(self) -> int:
        """The sequence of the oldest message that is kept, or of the next one."""
        return next(iter(self.messages), self.last_sequence + 1)

    def last_sequence_of(self, subject: str) -> int:
        """subject: may have wildcards. 0 if it has no message."""
        if "*" not in subject and ">" not in subject:
            return self.last_of_subject.get(subject, 0)
        return max((last for each, last in self.last_of_subject.items() if matches(subject, each)), default=0)

    def append(
        self,
        subject: str,
        data: bytes,
        message_id: str,
        headers: Mapping[str, str],
        expected: int | None,
        now_s: float,
    ) -> int:
        """Append after JetStream's checks: first the expectation, then the id, then the bounds. message_id "": none."""
        if expected is not None and (found := self.last_of_subject.get(subject, 0)) != expected:
            raise WrongExpectedSequence(subject, expected, found)
        sequence, stored_at_s = self.known_ids.get(message_id, (0, 0.0))
        if sequence and now_s < stored_at_s + DUPLICATE_WINDOW_S:
            if not is_of_ledger(subject) or is_stored_as(self.messages.get(sequence), subject, data):
                return sequence
            message_id = f"{message_id}.{self.last_sequence + 1}"
        num_message_bytes = len(data) + sum(len(name) + len(value) for name, value in headers.items())
        if num_message_bytes > self.max_message_bytes:
            raise TooLarge(subject, num_message_bytes, int(self.max_message_bytes))
        if self.num_bytes + len(data) > self.max_bytes:
            raise StorageFull(subject, "maximum bytes exceeded")
        if self.num_of_subject[subject] >= self.max_per_subject:
            raise StorageFull(subject, "maximum messages per subject exceeded")
        self.last_sequence += 1
        self.messages[self.last_sequence] = LedgerRecord(
            subject=subject,
            sequence=self.last_sequence,
            data=data,
            message_id=message_id,
            stored_at_s=now_s,
        )
        self.num_bytes += len(data)
        self.num_of_subject[subject] += 1
        self.headers[self.last_sequence] = {**headers, "Nats-Msg-Id": message_id} if message_id else headers
        self.last_of_subject[subject] = self.last_sequence
        if message_id:
            self.known_ids[message_id] = (self.last_sequence, now_s)
        self.bell.ring()
        return self.last_sequence

    def settle(self, sequence: int) -> None:
        """Take a message out of the work queue."""
        settled = self._remove(sequence)
        if settled is not None:
            self.on_settle(settled)

    def matching(self, pattern: str, after_sequence: int = 0) -> Iterator[LedgerRecord]:
        """The messages behind a sequence on these subjects, in order."""
        for sequence in range(after_sequence + 1, self.last_sequence + 1):
            message = self.messages.get(sequence)
            if message is not None and matches(pattern, message.subject):
                yield message

    def purge(self, pattern: str, *, up_to: float = float("inf")) -> None:
        """Remove the messages on these subjects up to a sequence; their ids stay known."""
        for message in list(self.matching(pattern)):
            if message.sequence > up_to:
                return
            self._remove(message.sequence)
            if self.last_of_subject.get(message.subject) == message.sequence:
                del self.last_of_subject[message.subject]

    def _remove(self, sequence: int) -> LedgerRecord | None:
        removed = self.messages.pop(sequence, None)
        self.headers.pop(sequence, None)
        if removed is not None:
            self.num_bytes -= len(removed.data)
            self.num_of_subject[removed.subject] -= 1
        return removed


@dataclass(slots=True)
class Consumer:
    """The messages of a work queue to deliver, and when each may be delivered again. subjects: its selection."""

    stream: StoredStream
    subjects: str
    ack_wait_s: float
    next_sequence: int = 1
    due_s: dict[int, float] = field(default_factory=dict)
    num_delivered: dict[int, int] = field(default_factory=dict)

    def take(self, max_messages: int, now_s: float) -> list[int]:
        """Messages to deliver: those that come again, then new ones."""
        again = sorted(sequence for sequence, due_s in self.due_s.items() if due_s <= now_s)
        taken = [sequence for sequence in again if sequence in self.stream.messages][:max_messages]
        new = self.stream.matching(self.subjects, self.next_sequence - 1)
        for message in islice(new, max_messages - len(taken)):
            taken.append(message.sequence)
            self.next_sequence = message.sequence + 1
        if len(taken) < max_messages:
            self.next_sequence = self.stream.last_sequence + 1
        for sequence in taken:
            self.num_delivered[sequence] = self.num_delivered.get(sequence, 0) + 1
            self.due_s[sequence] = now_s + self.ack_wait_s
        return taken

    def next_due_s(self) -> float:
        return min(self.due_s.values(), default=float("inf"))

    def postpone(self, sequence: int, due_s: float) -> None:
        """Deliver it again at due_s, unless it is settled."""
        if sequence in self.stream.messages:
            self.due_s[sequence] = due_s
            self.stream.bell.ring()

    def forget(self) -> None:
        """Its messages are gone."""
        self.due_s.clear()
        self.num_delivered.clear()

    def settle(self, sequence: int) -> None:
        self.stream.settle(sequence)
        self.due_s.pop(sequence, None)
        self.num_delivered.pop(sequence, None)


# --- broker --------------------------------------------------------------------------------------------


class Listener:
    """A subscription's end at the server. link: to its client."""

    def __init__(self, pattern: str, queue: str, link: Link) -> None:
        self.pattern = pattern
        self.queue = queue
        self.link = link
        self.messages: list[Message] = []
        self._num_bytes = 0
        self.closed = False
        self.bell = Bell()

    def put(self, message: Message, position: int | None = None) -> None:
        """position: before which of the waiting messages; None is the end."""
        self.messages.insert(len(self.messages) if position is None else position, message)
        self._num_bytes += len(message.data)
        while len(self.messages) > MAX_INBOX or self._num_bytes > MAX_INBOX_BYTES:
            self.take()
        self.bell.ring()

    def take(self) -> Message:
        """The oldest."""
        message = self.messages.pop(0)
        self._num_bytes -= len(message.data)
        return message

    def close(self) -> None:
        self.closed = True
        self.bell.ring()


class MemoryBroker:
    """The state that the clients of one bus share: as of one server, not of a cluster.

    max_payload_bytes: the largest message that it accepts.
    """

    def __init__(self, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self.max_payload_bytes = max_payload_bytes
        self.listeners: list[Listener] = []
        self.objects: dict[str, dict[str, bytes]] = {}
        self.object_times_s: dict[tuple[str, str], float] = {}  # by bucket and name
        self._streams: dict[str, StoredStream] = {}
        self._consumers: dict[tuple[str, str], Consumer] = {}
        self._values: dict[str, dict[str, tuple[Value, float]]] = {}
        self._revisions: dict[str, int] = {}
        self._route: dict[str, StoredStream] = {}
        self._turn = 0

    def ensure_pool(self, pool: str, limits: StreamLimits | None = None) -> None:
        limits = limits or StreamLimits()
        for name, kept in {
            streams.submit_stream(pool): StoredStream(
                streams.submit_subjects(pool),
                max_bytes=limits.submit_bytes,
                max_message_bytes=MAX_COMMAND_BYTES,
                max_per_subject=limits.submit_commands_per_tenant,
            ),
            streams.dead_letter_stream(pool): StoredStream(streams.dead_letter_subjects(pool)),
            streams.task_stream(pool): StoredStream(streams.task_subjects(pool), limits.task_bytes),
            streams.result_stream(pool): StoredStream(subjects.every_result(pool), limits.result_bytes),
            streams.ledger_stream(pool): StoredStream(streams.ledger_subjects(pool)),
        }.items():
            self._streams.setdefault(name, kept)
        for bucket in (streams.code_bucket(pool), streams.snapshot_bucket(pool), streams.artifact_bucket(pool)):
            self.objects.setdefault(bucket, {})
        for bucket_of in (streams.state_bucket, streams.node_bucket, streams.log_bucket, streams.view_bucket):
            self._values.setdefault(bucket_of(pool), {})

    def pools(self) -> tuple[str, ...]:
        prefix = streams.LEDGER_PREFIX
        return tuple(sorted(name.removeprefix(prefix) for name in self._streams if name.startswith(prefix)))

    def stream(self, name: str) -> StoredStream:
        if name not in self._streams:
            raise UnknownStream(name)
        return self._streams[name]

    def ledger(self, pool: str) -> StoredStream:
        return self.stream(streams.ledger_stream(pool))

    def route(self, subject: str) -> StoredStream:
        """The stream that takes a subject."""
        if subject not in self._route:
            takers = [stream for stream in self._streams.values() if matches(stream.subjects, subject)]
            if not takers:
                raise UnknownStream(subject)
            self._route[subject] = takers[0]
        return self._route[subject]

    def consumer(self, stream: str, name: str, subjects: str, ack_wait_s: float) -> Consumer:
        consumer = self._consumers.setdefault((stream, name), Consumer(self.stream(stream), subjects, ack_wait_s))
        consumer.ack_wait_s = ack_wait_s
        return consumer

    def forget_consumer(self, stream: str, name: str) -> None:
        """No effect if there is none. Queues that are open continue, as if they had made it again."""
        if (stream, name) in self._consumers:
            self._consumers[stream, name].forget()

    def receivers(self, subject: str) -> list[Listener]:
        """All subscribers without a queue, and one of each queue, in rotation."""
        listening = [listener for listener in self.listeners if matches(listener.pattern, subject)]
        chosen = [listener for listener in listening if not listener.queue]
        self._turn += 1
        for queue in sorted({listener.queue for listener in listening} - {""}):
            members = [listener for listener in listening if listener.queue == queue]
            chosen.append(members[self._turn % len(members)])
        return chosen

    def wake_all(self) -> None:
        """A client has closed: each of its waiting calls checks that."""
        for stream in self._streams.values():
            stream.bell.ring()

    def value(self, bucket: str, key: str, now_s: float) -> Value | None:
        if bucket not in self._values:
            raise UnknownStream(streams.value_subject(bucket, key))
        value, expires_s = self._values[bucket].get(key, (None, 0.0))
        return value if now_s < expires_s else None

    def put_value(
        self, bucket: str, key: str, data: bytes, expected: int | None, expires_s: float, now_s: float
    ) -> int:
        current = self.value(bucket, key, now_s)
        if expected is not None and expected != (current.revision if current else 0):
            raise WrongExpectedSequence(streams.value_subject(bucket, key), expected)
        revision = self._revisions[bucket] = self._revisions.get(bucket, 0) + 1
        self._values[bucket][key] = (Value(data=data, revision=revision), expires_s)
        return revision
