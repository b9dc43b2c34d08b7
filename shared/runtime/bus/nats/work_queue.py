"""A work queue over a durable JetStream consumer.

nats-py's fetch asks twice (what is there? then wait) and may not come back after a server restart. Here one
request waits at the server until there is something, then brings all there is; it is asked again whenever
the connection, the consumer or the leader has changed.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass

from nats.aio.msg import Msg

from elasticflow.shared.errors import BusClosed, Unavailable
from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import WorkItem
from elasticflow.shared.runtime.bus.nats.connection import Connection, ReplyInbox, status_of
from elasticflow.shared.runtime.bus.nats.jetstream_api import check, delete_consumer

_MAX_ACK_PENDING = 20_000  # of all replicas together
_LONGEST_WAIT_S = 60.0
_RETRY_S = 0.1
_GRACE_S = 0.5  # how late the server's "nothing came" may be
_NS = 1_000_000_000
_NOTHING_MORE = ("404", "408")


class NatsWorkQueue:
    """See `bus.WorkQueue`. Not for use by two tasks at once."""

    def __init__(self, connection: Connection, inbox: ReplyInbox, reply: str, stream: str, config: dict[str, object]):
        self._connection = connection
        self._inbox = inbox
        self._reply = reply
        self._stream = stream
        self._config = config
        self._numbers = itertools.count()

    @classmethod
    async def open(
        cls, connection: Connection, stream: str, consumer_name: str, ack_wait_s: float, **selection: object
    ) -> "NatsWorkQueue":
        """selection: more of the consumer's configuration. Raises UnknownStream, Unavailable."""
        config: dict[str, object] = {
            "name": consumer_name,
            "durable_name": consumer_name,
            "ack_policy": "explicit",
            "ack_wait": int(ack_wait_s * _NS),
            "max_deliver": -1,  # the host parks what never works; the server must not lose it
            "max_ack_pending": _MAX_ACK_PENDING,
            **selection,
        }
        reply = connection.new_subject()
        inbox = await connection.open_inbox(reply + ".*")
        queue = cls(connection, inbox, reply, stream, config)
        try:
            await queue._ensure_consumer()
        except BaseException:
            await connection.close_inbox(inbox)
            raise
        return queue

    async def pull(self, max_messages: int, timeout_s: float) -> list[WorkItem]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            if items := self._take(max_messages):
                return items
            remaining_s = deadline - loop.time()
            if remaining_s <= 0 or not await self._connection.wait_connected(remaining_s):
                return []
            with contextlib.suppress(Unavailable):  # the connection has just broken: wait for the next
                await self._ask(max_messages, min(remaining_s, _LONGEST_WAIT_S))
            await asyncio.sleep(0)  # it may fail at once until nats-py's reconnecting has had its first turn

    async def close(self) -> None:
        for item in self._take(len(self._inbox.messages)):
            await item.nak()
        await self._connection.close_inbox(self._inbox)

    async def _ask(self, max_messages: int, timeout_s: float) -> None:
        """One request, until the server has reported its end."""
        number, epoch = str(next(self._numbers)), self._connection.epoch
        request = {
            "batch": max_messages,
            "expires": int(timeout_s * _NS),
            "no_wait": True,  # with expires: wait for the first, then take what else is there
        }
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s + _GRACE_S
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._config['name']}",
            json.dumps(request).encode(),
            reply=f"{self._reply}.{number}",
        )
        while (status := self._status(number)) is None and self._num_items() < max_messages:
            if not await self._inbox.wait(deadline - loop.time()):
                return
            if self._connection.epoch != epoch or not self._connection.is_connected:
                return
        if status is not None and status not in _NOTHING_MORE:
            await self._after_failure(status)

    async def _after_failure(self, status: str) -> None:
        """The consumer was deleted, or moves to another leader."""
        try:
            await self._ensure_consumer()
        except Unavailable:
            await asyncio.sleep(_RETRY_S)
            return
        if status != "503":
            await asyncio.sleep(_RETRY_S)

    async def _ensure_consumer(self) -> None:
        name = self._config["name"]
        answer = await self._connection.api(
            f"CONSUMER.CREATE.{self._stream}.{name}", {"stream_name": self._stream, "config": self._config}
        )
        check(answer, self._stream, self._connection.url)

    def _status(self, number: str) -> str | None:
        """How the server has ended this request, or None; forgets how earlier ones have ended."""
        ended = None
        for message in [message for message in self._inbox.messages if status_of(message) is not None]:
            self._inbox.messages.remove(message)
            if message.subject == f"{self._reply}.{number}":
                ended = status_of(message)
        return ended

    def _num_items(self) -> int:
        return len(self._inbox.messages)

    def _take(self, max_messages: int) -> list[WorkItem]:
        self._status("")
        messages = self._inbox.messages
        return [_item(messages.popleft(), self._connection) for _ in range(min(max_messages, len(messages)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsWorkItem:
    """See `bus.WorkItem`. reply_to: where its acknowledgement goes."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    stored_at_s: float
    num_delivered: int
    reply_to: str
    connection: Connection

    async def ack(self) -> None:
        await self._settle(b"+ACK")

    async def nak(self, delay_s: float = 0.0) -> None:
        await self._settle(b'-NAK {"delay": %d}' % int(delay_s * _NS))

    async def in_progress(self) -> None:
        await self._settle(b"+WPI")

    async def term(self) -> None:
        await self._settle(b"+TERM")

    async def _settle(self, acknowledgement: bytes) -> None:
        with contextlib.suppress(Unavailable, BusClosed):  # it comes again
            await self.connection.publish(self.reply_to, acknowledgement)


def _item(message: Msg, connection: Connection) -> NatsWorkItem:
    """reply: as in nats_follow."""
    tokens = message.reply.split(".")
    at = 0 if len(tokens) == 9 else 2
    return NatsWorkItem(
        subject=message.subject,
        data=message.data,
        headers=message.headers or {},
        sequence=int(tokens[5 + at]),
        stored_at_s=int(tokens[7 + at]) / _NS,
        num_delivered=int(tokens[4 + at]),
        reply_to=message.reply,
        connection=connection,
    )


# --- padding streams -----------------------------------------------------------------------------------
# Tasks and results of padding loads in JetStream. `Bus` says what each function does.

_UNUSED_S = 3600  # the server forgets a load's consumer that no executor has used for so long; its tasks stay


async def open_tasks(connection: Connection, pool: str, load: str, ack_wait_s: float) -> NatsWorkQueue:
    return await NatsWorkQueue.open(
        connection,
        streams.task_stream(pool),
        load,
        ack_wait_s,
        filter_subject=subjects.tasks(pool, load),
        inactive_threshold=_UNUSED_S * _NS,  # an executor that pulls late makes the consumer of a deleted load again
    )


async def delete_results(connection: Connection, pool: str, load: str, up_to: int) -> None:
    await _purge(connection, streams.result_stream(pool), subjects.every_result(pool, load), seq=up_to + 1)


async def delete_load(connection: Connection, pool: str, load: str, *, with_results: bool) -> None:
    await delete_consumer(connection, streams.task_stream(pool), load)
    await _purge(connection, streams.task_stream(pool), subjects.tasks(pool, load))
    if with_results:
        await _purge(connection, streams.result_stream(pool), subjects.every_result(pool, load))


async def _purge(connection: Connection, stream: str, subject: str, **bound: int) -> None:
    check(await connection.api(f"STREAM.PURGE.{stream}", {"filter": subject, **bound}), stream, connection.url)
