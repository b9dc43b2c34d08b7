"""Reading a ledger without a consumer, for a client that may not make one.

The configuration of a consumer names the subject on which the server publishes, with the server's own permissions. So a
client that makes consumers writes wherever it wants (decision record 0056). A direct read is answered on the reply
subject of its request, which an account confines to itself.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nats.aio.msg import Msg

from elasticflow.shared.errors import LedgerBroken, NoResponder, NotPermitted, RequestTimeout, Unavailable
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import MAX_BATCH, Batches
from elasticflow.shared.runtime.bus.nats import jetstream_api, stream_follower
from elasticflow.shared.runtime.bus.nats.connection import Connection, ConnectionBroke, ReplyInbox, status_of
from elasticflow.shared.runtime.bus.nats.stream_follower import LedgerPosition

_POLL_S = 0.5  # without news; a message on the ledger's subjects wakes the reader before
_FIRST_WAIT_S = 0.002  # such a message arrives before it is stored
_TIMEOUT_S = 5.0  # between two messages of an answer
_MAX_BYTES = 16 << 20  # of one answer


async def follow_ledger(connection: Connection, pool: str, after_sequence: int) -> Batches:
    """See `Bus.follow`: by a consumer, or directly if none is permitted."""
    last = after_sequence
    try:
        async with contextlib.aclosing(stream_follower.follow_ledger(connection, pool, last)) as batches:
            async for batch in batches:
                last = batch[-1].sequence
                yield batch
    except NotPermitted:
        async with contextlib.aclosing(_read_directly(connection, pool, last)) as batches:
            async for batch in batches:
                yield batch


async def _read_directly(connection: Connection, pool: str, after_sequence: int) -> Batches:
    last, gap_at = after_sequence, -1
    position = LedgerPosition(connection, pool)
    await _wait_held(connection, position, after_sequence)
    news = await connection.open_inbox(streams.ledger_subjects(pool), max_messages=1)
    wait_s = _POLL_S
    try:
        while True:
            await connection.wait_connected(None)
            batch = await _consecutive(connection, pool, last + 1)
            if not batch:
                with contextlib.suppress(Unavailable):
                    await position.check_readable(last, directly=True)
                wait_s = await _next_wait_s(news, wait_s)
                continue
            if batch[0].sequence > last + 1:
                if gap_at == last:  # twice at one place: nothing got lost on the way, it is not there
                    raise LedgerBroken(pool, last + 1, batch[0].sequence)
                gap_at = last
                continue
            last, wait_s = batch[-1].sequence, _FIRST_WAIT_S
            yield batch
    finally:
        await connection.close_inbox(news)


async def _wait_held(connection: Connection, position: LedgerPosition, sequence: int) -> None:
    """Return once the ledger reaches this sequence. Raises LedgerTruncated."""
    while True:
        await connection.wait_connected(None)
        with contextlib.suppress(Unavailable):
            if await position.is_held(sequence):
                return
        await asyncio.sleep(_POLL_S)


async def _next_wait_s(news: ReplyInbox, wait_s: float) -> float:
    """Wait for news, at most so long. Returns how long to wait next if there is nothing to read again."""
    is_news = bool(news.messages) or await news.wait(wait_s)
    if not is_news:
        return min(2 * wait_s, _POLL_S)
    news.clear()
    return _FIRST_WAIT_S


async def num_unreadable_values(connection: Connection, stream: str) -> int:
    """Keys of a bucket that its server counts and does not deliver. Raises Unavailable, NotPermitted."""
    counted = (await jetstream_api.leader_info(connection, stream))["state"].get("num_subjects", 0)
    keys, last = set[str](), 0
    if await jetstream_api.first_readable(connection, stream, 1, directly=True) is None:
        return counted
    while len(keys) < counted and (batch := await _batch(connection, stream, last + 1)):
        keys.update(record.subject for record in batch)
        last = batch[-1].sequence
    still_counted = (await jetstream_api.leader_info(connection, stream))["state"].get("num_subjects", 0)
    return max(min(counted, still_counted) - len(keys), 0)


async def _consecutive(connection: Connection, pool: str, first: int) -> tuple[LedgerRecord, ...]:
    """Messages from this sequence on without a gap, or the first one behind it; () if the server has none now."""
    batch = await _batch(connection, streams.ledger_stream(pool), first)
    return tuple(record for index, record in enumerate(batch) if record.sequence == batch[0].sequence + index)


async def _batch(connection: Connection, stream: str, first: int) -> tuple[LedgerRecord, ...]:
    """Messages from this sequence on; () if the server has none now."""
    reply = connection.new_subject()
    inbox = await connection.open_inbox(reply)
    records: list[LedgerRecord] = []
    try:
        request = json.dumps({"seq": first, "batch": MAX_BATCH, "max_bytes": _MAX_BYTES}).encode()
        await connection.publish(f"$JS.API.DIRECT.GET.{stream}", request, reply=reply)
        while await inbox.wait(_TIMEOUT_S) and connection.is_connected:
            while inbox.messages:
                message = inbox.messages.popleft()
                if status_of(message) is not None:  # the end of the answer, or nothing to read
                    return tuple(records)
                records.append(record_in(message))
    except Unavailable:
        await asyncio.sleep(_FIRST_WAIT_S)
    finally:
        await connection.close_inbox(inbox)
    return tuple(records)


async def stored_record(connection: Connection, pool: str, wanted: Mapping[str, Any]) -> LedgerRecord | None:
    """A message of the ledger: of the leader, or of any replica if that alone is permitted.

    wanted: {"seq": 7}, or {"last_by_subj": subject}.
    """
    stream = streams.ledger_stream(pool)
    try:
        return await jetstream_api.stored_record(connection, stream, wanted)
    except NotPermitted:
        request = json.dumps(wanted).encode()
    try:
        answer = await connection.request(f"$JS.API.DIRECT.GET.{stream}", request, timeout_s=_TIMEOUT_S)
    except (NoResponder, RequestTimeout, ConnectionBroke) as error:
        raise Unavailable(connection.url, str(error) or "connection broke") from None
    return None if status_of(answer) is not None else record_in(answer)


def record_in(message: Msg) -> LedgerRecord:
    """The stored message that the server has sent for a direct read."""
    headers = message.headers or {}
    return LedgerRecord(
        subject=headers["Nats-Subject"],
        sequence=int(headers["Nats-Sequence"]),
        data=message.data,
        message_id=headers.get("Nats-Msg-Id", ""),
        stored_at_s=datetime.fromisoformat(headers["Nats-Time-Stamp"]).timestamp(),
    )
