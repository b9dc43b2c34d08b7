"""Streams and consumers of the bus in memory: the messages that are kept, and who has which."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from elasticflow.shared.errors import StorageFull, TooLarge, WrongExpectedSequence
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import is_stored_as
from elasticflow.shared.runtime.bus.streams import is_of_ledger
from elasticflow.shared.runtime.process.clock import Clock

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
        """Until the next ring, or until_s."""
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
class Stream:
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
        """Of the oldest message that is kept, or of the next one."""
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
        """In JetStream's order: first the expectation, then the id, then the bounds. message_id "": none."""
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
    """Which messages of a work queue are delivered, and when each may be delivered again. subjects: its selection."""

    stream: Stream
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
