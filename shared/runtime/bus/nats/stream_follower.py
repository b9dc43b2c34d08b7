"""Reading a stream from JetStream: in order, without a loss, whatever happens to server, consumer or connection.

An ephemeral push consumer delivers with flow control and no acks: the fastest that JetStream has. It is trusted
with nothing: numbers are checked here, and whatever looks wrong (a gap, silence, a new connection) leads to a
new consumer that starts behind the last good message.
A ledger is read whole, so that its sequences have no gaps. Those of one load's results do; there the consumer's own
numbers show a loss.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from nats.aio.msg import Msg

from elasticflow.shared.errors import BusClosed, LedgerBroken, LedgerTruncated, Unavailable
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import MAX_BATCH, Batches
from elasticflow.shared.runtime.bus.nats.connection import Connection, ReplyInbox, status_of
from elasticflow.shared.runtime.bus.nats.jetstream_api import check, first_readable, leader_info
from elasticflow.shared.runtime.process.logs import log

# --- Does the ledger still hold what was read of it, and what its leader counts? -----------------------
# A server that lags behind seems to have a shorter one, and catches up. Only what its leader tells counts; in a
# cluster, only if it stays so. Then messages are lost that NATS had acknowledged: no reader may continue, because
# what follows would take the place of what it has folded. A server with a damaged file counts messages that it cannot
# read. It delivers none of them and says nothing.

CONFIRMED_AFTER_S = 5.0  # a leader that was paused believes for a moment that it still leads


class LedgerPosition:
    """The position of one reader of a pool's ledger."""

    def __init__(self, connection: Connection, pool: str) -> None:
        self._connection, self._pool = connection, pool
        self._shorter_since_s: float | None = None
        self._is_reached = False  # the end that the ledger had at some moment
        self._unreadable_since_s: float | None = None

    async def is_held(self, sequence: int) -> bool:
        """Whether the ledger reaches this sequence; False: ask again. Raises LedgerTruncated, Unavailable."""
        try:
            info = await leader_info(self._connection, streams.ledger_stream(self._pool))
        except Unavailable:
            self._shorter_since_s = None
            raise
        end, now_s = info["state"]["last_seq"], asyncio.get_running_loop().time()
        if end >= sequence:
            self._shorter_since_s = None
            return True
        if self._shorter_since_s is None:
            self._shorter_since_s = now_s
        if not _is_replicated(info) or now_s - self._shorter_since_s >= CONFIRMED_AFTER_S:
            raise LedgerTruncated(self._pool, sequence, end)
        log.warning("LedgerSeemsTruncated", pool=self._pool, read=sequence, end=end, leader=info["cluster"]["leader"])
        return False

    async def check_readable(self, last: int, *, directly: bool = False) -> None:
        """Compare the last message that was read with the end, until the reader has come there once.

        For a reader that gets nothing more. directly: it may not ask the leader for messages, and so it believes a
        server only if there is no other one. Raises LedgerBroken if the next message cannot be read, Unavailable.
        """
        if self._is_reached:
            return
        stream = streams.ledger_stream(self._pool)
        info = await leader_info(self._connection, stream)
        end = info["state"]["last_seq"]
        self._is_reached = end <= last
        if self._is_reached or (directly and _is_replicated(info)):
            return
        found = await first_readable(self._connection, stream, last + 1, directly=directly) or end + 1
        if found == last + 1:
            self._unreadable_since_s = None
            return
        now_s = asyncio.get_running_loop().time()
        if self._unreadable_since_s is None:
            self._unreadable_since_s = now_s
        # a new leader may not have applied yet what the old one has counted
        if not _is_replicated(info) or now_s - self._unreadable_since_s >= CONFIRMED_AFTER_S:
            raise LedgerBroken(self._pool, last + 1, found)


def _is_replicated(info: Mapping[str, Any]) -> bool:
    return bool(info.get("cluster", {}).get("replicas"))


# --- stream follower -----------------------------------------------------------------------------------

_HEARTBEAT_S = 2.0
_SILENCE_S = 2.5 * _HEARTBEAT_S
_INACTIVE_S = 30.0  # the server forgets a consumer whose reader is gone for so long
_FIRST_RETRY_S = 0.02
_LAST_RETRY_S = 1.0
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Source:
    """What is read. selection: the subjects of which, "" for a whole ledger.

    token: of a message's reply subject, the number without gaps. header: with that of the last one, in a heartbeat.
    headers_only: the server keeps the data back.
    """

    pool: str
    stream: str
    selection: str
    token: int
    header: str
    headers_only: bool = False


def follow_ledger(connection: Connection, pool: str, after_sequence: int) -> Batches:
    """See `Bus.follow`."""
    return _follow(connection, _Source(pool, streams.ledger_stream(pool), "", 5, "Nats-Last-Stream"), after_sequence)


def follow_results(connection: Connection, pool: str, load_id: str, after_sequence: int) -> Batches:
    """See `Bus.results`."""
    selection = subjects.every_result(pool, load_id)
    source = _Source(pool, streams.result_stream(pool), selection, 6, "Nats-Last-Consumer")
    return _follow(connection, source, after_sequence)


def follow_result_subjects(connection: Connection, pool: str, after_sequence: int) -> Batches:
    """See `Bus.result_subjects`."""
    selection = subjects.every_result(pool)
    source = _Source(pool, streams.result_stream(pool), selection, 6, "Nats-Last-Consumer", headers_only=True)
    return _follow(connection, source, after_sequence)


async def _follow(connection: Connection, source: _Source, after_sequence: int) -> Batches:
    last = after_sequence
    known: LedgerRecord | None = None  # the last message that was read
    position = None if source.selection else LedgerPosition(connection, source.pool)
    gap_at = -1  # where the previous consumer left a gap
    retry_s = _FIRST_RETRY_S
    while True:
        await connection.wait_connected(None)
        feed = await _opened(connection, source, position, last, known)
        if feed is not None:
            try:
                while batch := await feed.next_batch():
                    known = batch[-1]
                    last, retry_s = known.sequence, _FIRST_RETRY_S
                    yield batch
            finally:
                await feed.close()
            if feed.found > last + 1:
                if gap_at == last:  # twice at one place: nothing got lost on the way, it is not there
                    raise LedgerBroken(source.pool, last + 1, feed.found)
                gap_at = last
            elif position is not None:
                with contextlib.suppress(Unavailable):
                    await position.check_readable(last)
        await asyncio.sleep(retry_s)
        retry_s = min(2 * retry_s, _LAST_RETRY_S)


async def _opened(
    connection: Connection, source: _Source, position: LedgerPosition | None, last: int, known: LedgerRecord | None
) -> "_Feed | None":
    """Open a feed; None if the server cannot just now. Raises UnknownStream, LedgerTruncated."""
    try:
        if position is not None and not await position.is_held(last):
            return None  # a consumer would wait without end or error
        return await _Feed.open(connection, source, last, known)
    except Unavailable:
        return None


class _Feed:
    """One consumer and what came from it. found: the ledger's sequence that came instead of the next one, or 0."""

    def __init__(
        self,
        connection: Connection,
        inbox: ReplyInbox,
        source: _Source,
        after_sequence: int,
        known: LedgerRecord | None,
    ) -> None:
        self.found = 0
        self._source, self._known = source, known
        self._connection = connection
        self._inbox = inbox
        self._epoch = connection.epoch
        self._last_number = 0 if source.selection else after_sequence

    @classmethod
    async def open(
        cls, connection: Connection, source: _Source, after_sequence: int, known: LedgerRecord | None
    ) -> Self:
        """known: the message at after_sequence, if it was read from here. Raises UnknownStream, Unavailable."""
        subject = connection.new_subject()
        inbox = await connection.open_inbox(subject)
        try:
            first = after_sequence if known is not None and not source.selection else after_sequence + 1
            await _create_consumer(connection, source, subject, first)
        except BaseException:
            await connection.close_inbox(inbox)
            raise
        return cls(connection, inbox, source, after_sequence, known)

    async def next_batch(self) -> tuple[LedgerRecord, ...]:
        """What has arrived, at least one; () when this consumer is good for nothing more."""
        while True:
            batch, broken = await self._take()
            if batch:
                return tuple(batch)
            if broken or not await self._inbox.wait(_SILENCE_S):
                return ()
            self._connection.check_open()
            if self._connection.epoch != self._epoch or not self._connection.is_connected:
                return ()

    async def close(self) -> None:
        await self._connection.close_inbox(self._inbox)

    async def _take(self) -> tuple[list[LedgerRecord], bool]:
        batch: list[LedgerRecord] = []
        messages = self._inbox.messages
        while messages and len(batch) < MAX_BATCH:
            message = messages[0]
            if status_of(message) is not None:
                messages.popleft()
                if not await self._obey(message):
                    return batch, True
                continue
            number = _number(message, self._source.token)
            if not self._source.selection and number <= self._last_number:
                messages.popleft()
                self._compare(message)
                continue
            if number != self._last_number + 1:
                self.found = 0 if self._source.selection else number
                return batch, True  # stays in the inbox: the next call ends here at once
            messages.popleft()
            self._last_number = number
            batch.append(_stored(message))
        return batch, False

    def _compare(self, message: Msg) -> None:
        """The server sends a message again: the last one that was read, or older ones if it lags behind."""
        stored = _stored(message)
        if self._known is not None and stored.sequence == self._known.sequence and stored != self._known:
            raise LedgerTruncated(self._source.pool, stored.sequence, stored.sequence - 1)

    async def _obey(self, message: Msg) -> bool:
        """A message of the server: answer flow control; False if it reports a loss."""
        headers = message.headers or {}
        go_on = message.reply or headers.get("Nats-Consumer-Stalled", "")
        if go_on:
            with contextlib.suppress(Unavailable, BusClosed):
                await self._connection.publish(go_on, b"")
        return int(headers.get(self._source.header, 0)) <= self._last_number


async def _create_consumer(connection: Connection, source: _Source, subject: str, first: int) -> None:
    stream = source.stream
    config = {
        "filter_subject": source.selection,
        "deliver_subject": subject,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": first,
        "ack_policy": "none",
        "replay_policy": "instant",
        "headers_only": source.headers_only,
        "flow_control": True,
        "idle_heartbeat": int(_HEARTBEAT_S * _NS),
        "inactive_threshold": int(_INACTIVE_S * _NS),
        "mem_storage": True,
        "num_replicas": 1,
    }
    answer = await connection.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
    check(answer, stream, connection.url)


def _number(message: Msg, token: int) -> int:
    """reply: $JS.ACK.[domain.account.]stream.consumer.delivered.sequence.consumer_sequence.time_ns.pending..."""
    tokens = message.reply.split(".")
    return int(tokens[token if len(tokens) == 9 else token + 2])


def _stored(message: Msg) -> LedgerRecord:
    return LedgerRecord(
        subject=message.subject,
        sequence=_number(message, 5),
        data=message.data,
        message_id=(message.headers or {}).get("Nats-Msg-Id", ""),
        stored_at_s=_number(message, 7) / _NS,
    )
