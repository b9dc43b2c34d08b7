"""The interface of the bus: bytes on subjects, stored or not. It knows no message type.

Two adapters keep this contract, and one test suite holds them to it: `nats_bus.NatsBus` and
`memory_bus.MemoryBus`. Failures are those of `elasticflow.shared.errors`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar

from elasticflow.shared.errors import MaybeStored, Retry, StorageFull, Unavailable
from elasticflow.shared.messages.codec import is_repeat
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.process.logs import BackoffLogger

# --- work queue ----------------------------------------------------------------------------------------
# The interface of a work queue of the bus: each message goes to one of those who pull, until one has settled it.


class WorkItem(Protocol):
    """A message of a work queue, to be settled by exactly one of ack, nak, term.

    Settling is best effort: if it gets lost, the message comes again (num_delivered counts from 1). sequence and
    stored_at_s are the same for each delivery.
    """

    @property
    def subject(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def sequence(self) -> int: ...
    @property
    def stored_at_s(self) -> float: ...
    @property
    def num_delivered(self) -> int: ...

    async def ack(self) -> None:
        """Done: never again."""
        ...

    async def nak(self, delay_s: float = 0.0) -> None:
        """Not now: deliver it again after delay_s, to any replica."""
        ...

    async def in_progress(self) -> None:
        """Still in progress: count the ack wait from now."""
        ...

    async def term(self) -> None:
        """Failed permanently: never again."""
        ...


class WorkQueue(Protocol):
    """One replica's access to a queue that all replicas of a consumer share."""

    async def pull(self, max_messages: int, timeout_s: float) -> list[WorkItem]:
        """Return at least one message as soon as there is one, and all that wait then; [] after timeout_s."""
        ...

    async def close(self) -> None:
        """Return messages that arrived without a pull."""
        ...


# --- contract ------------------------------------------------------------------------------------------

MAX_BATCH = 512  # messages in one batch of `follow`
MAX_INBOX = 10_000  # messages of a subscription that wait
MAX_INBOX_BYTES = 64 * 1024 * 1024  # of their data
DEFAULT_TIMEOUT_S = 5.0
REVISION_HEADER = "Nats-Sequence"  # of a stored value that is published too
ACK_WAIT_S = 30.0  # a message that is not settled within it goes to another replica
TASK_ACK_WAIT_S = 10.0  # a bundle lasts about half a second; an executor reports longer ones as in progress

Batches = AsyncGenerator[tuple[LedgerRecord, ...], None]  # of stored messages, in order; none is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that is not stored. reply: the subject on which its sender awaits an answer, "" if none."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What a key holds. revision: for the next `put_value` by compare-and-set."""

    data: bytes
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEnd:
    """sequence: of the ledger's last message, 0 if it is empty. at_s: the server's time.

    first: of the oldest message that is kept; those before it were deleted.
    """

    sequence: int
    at_s: float
    first: int = 1


def is_stored_as(record: LedgerRecord | None, subject: str, data: bytes) -> bool:
    """Whether the earlier message with the same id is this one, and not one that another sender gave its id."""
    return record is not None and record.subject == subject and is_repeat(record.data, data)


class Subscription(Protocol):
    """Messages from the moment `subscribe` returned."""

    def __aiter__(self) -> AsyncIterator[Message]: ...
    async def __anext__(self) -> Message: ...
    async def close(self) -> None: ...


class Bus(Protocol):
    """See the module. Sequences start at 1; 0 means "nothing yet"."""

    FIRST_RETRY_S: ClassVar[float] = 0.02
    LAST_RETRY_S: ClassVar[float] = 1.0

    # -- pools

    async def ensure_pool(self, pool: str) -> None:
        """Make what the pool keeps, unless it is there; many may do so at once.

        Raises BadSettings, ServerTooSmall, TooFewReplicas.
        """
        ...

    async def pool_exists(self, pool: str) -> bool: ...

    async def pools(self) -> tuple[str, ...]:
        """Sorted by name."""
        ...

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
        """Store permanently; the sequence it got. A message_id of the last two minutes is not stored again.

        In a ledger, whose ids are derived and can be foreseen, this holds for a repeat on the same subject only. Other
        ids must be such as no other sender can know before.
        expected_last_subject_sequence: store only if the subject's last message has this sequence (0: none); so
        a repeat of what is stored already is a conflict, like any other.
        Raises WrongExpectedSequence, MaybeStored, Unavailable, StorageFull, UnknownStream, TooLarge.
        """
        ...

    async def append_event(
        self, subject: str, data: bytes, *, message_id: str, headers: Mapping[str, str] | None = None
    ) -> int:
        """Store, however long it takes. A repeat has no effect: ids are derived, readers apply each once."""
        wait_s = self.FIRST_RETRY_S
        while True:
            try:
                return await self.append(subject, data, message_id=message_id, headers=headers)
            except (MaybeStored, Unavailable, StorageFull):
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, self.LAST_RETRY_S)

    def follow(self, pool: str, *, after_sequence: int) -> Batches:
        """The ledger in order, without gaps and without end: what has arrived, as one batch of at most MAX_BATCH.

        Waits while no server is reachable. Raises UnknownStream, LedgerBroken, LedgerTruncated.
        """
        ...

    async def read(self, pool: str, *, after_sequence: int, up_to: int) -> Batches:
        """The ledger from after_sequence + 1 to up_to, both included; waits for what is not there yet."""
        if after_sequence >= up_to:
            return
        async for batch in self.follow(pool, after_sequence=after_sequence):
            if batch[-1].sequence < up_to:
                yield batch
                continue
            yield batch[: len(batch) - (batch[-1].sequence - up_to)]
            return

    async def ledger_end(self, pool: str) -> LedgerEnd:
        """All that was acknowledged before this call is in the ledger up to here. Raises UnknownStream, Unavailable."""
        ...

    async def last_sequence(self, pool: str) -> int:
        """The last sequence of the pool's ledger; 0 if it is empty."""
        return (await self.ledger_end(pool)).sequence

    async def last_subject_sequence(self, subject: str) -> int:
        """The last sequence on one subject of a ledger, or on all that match one with wildcards; 0 if it has none."""
        ...

    async def last_record(self, subject: str) -> LedgerRecord | None:
        """The newest message on one subject of a ledger; its id may be left out. Raises UnknownStream, Unavailable."""
        ...

    async def delete_ledger(self, pool: str, *, up_to: int) -> None:
        """Delete the messages of a ledger up to a sequence, included; the others keep theirs. A repeat has no effect.

        Raises LedgerUnusable, UnknownStream, Unavailable.
        """
        ...

    async def work(self, pool: str, consumer_name: str, *, ack_wait_s: float = ACK_WAIT_S) -> WorkQueue:
        """The pool's submissions, shared by all replicas that name the same consumer."""
        ...

    # -- padding loads

    async def tasks(self, pool: str, load: str, *, ack_wait_s: float = TASK_ACK_WAIT_S) -> WorkQueue:
        """The bundles on `subjects.tasks`, shared by all executors; `append` adds one. load: a `Load.bus_name`.

        Raises UnknownStream, Unavailable.
        """
        ...

    def results(self, pool: str, load: str, *, after_sequence: int = 0) -> Batches:
        """What `append` stored on `subjects.results`, in that order and without end; batches as those of `follow`.

        Sequences have gaps: other loads' results lie between. Waits while no server is reachable.
        Raises UnknownStream.
        """
        ...

    def result_subjects(self, pool: str, *, after_sequence: int) -> Batches:
        """The results of all loads as records without data, else like `results`: their subjects name the tasks."""
        ...

    async def delete_results(self, pool: str, load: str, *, up_to: int) -> None:
        """Delete the results of a load up to a sequence, included. A repeat has no effect.

        Raises UnknownStream, Unavailable.
        """
        ...

    async def delete_load(self, pool: str, load: str, *, with_results: bool) -> None:
        """Forget the waiting tasks, who has which, and with with_results the results. A repeat has no effect.

        Executors close their queues first. load is never used again: the server may know its message ids.
        Raises UnknownStream, Unavailable.
        """
        ...

    # -- messages that are not stored

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send to the present subscribers. Raises Unavailable, TooLarge."""
        ...

    async def subscribe(self, subject: str, queue: str = "") -> Subscription:
        """queue: each message goes to one subscriber of those that name the same queue.

        Of more than MAX_INBOX messages or MAX_INBOX_BYTES that were not taken, the newest stay.
        """
        ...

    async def request(self, subject: str, data: bytes, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """The first answer. Raises NoResponder, RequestTimeout, Unavailable, TooLarge."""
        ...

    # -- objects and values

    async def put_object(self, bucket: str, name: str, data: bytes) -> None:
        """Tens of megabytes are fine; replaces an older object of that name."""
        ...

    async def get_object(self, bucket: str, name: str, *, max_bytes: int) -> bytes:
        """Raises NotFound (also for an incomplete object), DamagedObject (also for a larger one), Unavailable."""
        ...

    async def delete_old_objects(self, bucket: str, *, before_s: float, is_needed: Callable[[str], bool]) -> int:
        """Delete what was last put before this time of the server: objects that are not needed, and remains of others.

        is_needed: asked by name. A `put_object` at the same time, also of the same bytes, leaves the object there.
        Returns the number of deleted objects. Raises Unavailable.
        """
        ...

    async def get_value(self, bucket: str, key: str) -> Value | None: ...

    async def put_value(
        self,
        bucket: str,
        key: str,
        data: bytes,
        *,
        expected_revision: int | None = None,
        ttl_s: int | None = None,
    ) -> int:
        """The new revision. expected_revision: only if the key is at it (0: only if there is no such key).

        ttl_s: forget the key after so many whole seconds.
        In a cluster it returns once a majority of the servers has stored the value. A value of `streams.node_bucket`
        is then published to the subscribers of `streams.republished_on`, with its revision in REVISION_HEADER.
        Raises WrongExpectedSequence, MaybeStored, Unavailable.
        """
        ...

    async def close(self) -> None:
        """Send pending messages, then disconnect; closing twice is allowed."""
        ...


# --- with retry ---------------------------------------------------------------------------------------
# Repeats of a call while the server has no leader for its stream.

RETRY_TIMEOUT_S = 15.0  # a cluster that has lost a server elects a leader in seconds, without any reply
_RETRY_S = 0.2

T = TypeVar("T")
P = ParamSpec("P")


async def with_retry(call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Repeat an idempotent call while JetStream does not reply.

    No attempt starts later than RETRY_TIMEOUT_S after the first. Raises the error of the last attempt.
    """
    now_s = asyncio.get_running_loop().time
    give_up_at_s = now_s() + RETRY_TIMEOUT_S
    while True:
        try:
            return await call(*args, **kwargs)
        except (Unavailable, MaybeStored):
            if now_s() + _RETRY_S > give_up_at_s:
                raise
        await asyncio.sleep(_RETRY_S)


# --- until available -----------------------------------------------------------------------------------
# What a service opens once, at its start: a server that cannot answer then must not end it.

RETRY_S = 0.1


async def until_available(open: Callable[[], Awaitable[T]], log: Any, what: str) -> T:
    """The result of the first call that the server answers. what: the log says that it is postponed."""
    backoff = BackoffLogger(log, f"{what} postponed")
    while True:
        try:
            opened = await open()
        except Retry as error:
            backoff.goes_on(error)
            await asyncio.sleep(RETRY_S)
        else:
            backoff.is_over()
            return opened
