"""The bus over NATS JetStream, server 2.12 or newer."""

from collections.abc import AsyncIterator, Callable, Mapping

from elasticflow.shared.errors import (
    NotPermitted,
    RequestTimeout,
    ServerTooSmall,
    Unavailable,
    UnknownStream,
)
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import (
    ACK_WAIT_S,
    DEFAULT_TIMEOUT_S,
    MAX_INBOX,
    TASK_ACK_WAIT_S,
    Batches,
    Bus,
    LedgerEnd,
    Message,
    Value,
    WorkQueue,
    is_stored_as,
)
from elasticflow.shared.runtime.bus.nats import (
    direct_reader,
    jetstream_api,
    object_store,
    pool_check,
    stream_follower,
    work_queue,
)
from elasticflow.shared.runtime.bus.nats.connection import Connection, ConnectionBroke, OnState, ReplyInbox
from elasticflow.shared.runtime.bus.nats.work_queue import NatsWorkQueue
from elasticflow.shared.runtime.bus.streams import StreamLimits, check_replicas, stream_configs
from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.runtime.process.nats_access import WITH_TOKEN, NatsAccess


async def connect_nats(
    url: str,
    *,
    name: str,
    on_state: OnState | None = None,
    wait_s: float = 0.0,
    limits: StreamLimits | None = None,
    access: NatsAccess = WITH_TOKEN,
) -> "NatsBus":
    """Connect, and stay connected: breaks are logged, reported to on_state and repaired, without end.

    url: `nats://[token@ | user:password@]host:port`, several with commas. name: shown by the server.
    wait_s: how long to try if there is no server yet. Raises Unavailable, BadCredentials, BadSettings.
    """
    connection = Connection(url, on_state)
    await connection.open(url, name=name, wait_s=wait_s, access=access)
    return NatsBus(connection, limits or StreamLimits())


class NatsBus(Bus):
    """See `Bus`; made by `connect_nats`."""

    def __init__(self, connection: Connection, limits: StreamLimits) -> None:
        self._connection = connection
        self._limits = limits

    @property
    def is_connected(self) -> bool:
        """False while it reconnects."""
        return self._connection.is_connected

    async def ensure_pool(self, pool: str) -> None:
        streams.check_pool(pool)
        needed_bytes = self._limits.reserved_bytes
        pool_check.check_max_payload(self._connection)
        exists = await self.pool_exists(pool)
        if not exists:
            await jetstream_api.check_account(self._connection, needed_bytes)
        replicas: dict[str, int] = {}
        for config in stream_configs(pool, self._limits):
            name = config["name"]
            try:
                replicas[name] = await jetstream_api.ensure_stream(self._connection, config, needed_bytes)
            except ServerTooSmall as error:
                if name in streams.optional_streams(pool):
                    log.warning("no_space_for_optional_stream", stream=name, error=str(error))
                    continue
                if not (exists and name in streams.padding_streams(pool)):
                    raise
                log.warning("no_space_for_padding_loads", stream=name, error=str(error))  # jobs need none of it
            except NotPermitted:
                if not (exists and name in streams.optional_streams(pool)):
                    raise
                log.warning("optional_stream_is_missing", stream=name)  # the operator, who may make it, had no space
        check_replicas(replicas, self._limits.replicas)

    async def problems(self, pool: str) -> tuple[str, ...]:
        """What `ensure_pool` would refuse, and streams that are missing or that protect less than new ones do.

        Raises Unavailable, NotPermitted.
        """
        return await pool_check.problems(self._connection, pool, self._limits)

    def server_problems(self) -> tuple[str, ...]:
        """What is wrong with the server, as far as a client of any role sees it."""
        return pool_check.server_problems(self._connection)

    async def pool_exists(self, pool: str) -> bool:
        if not streams.valid_pool(pool):
            return False
        try:
            await self.last_sequence(pool)
        except UnknownStream:
            return False
        return True

    async def pools(self) -> tuple[str, ...]:
        names = await jetstream_api.stream_names(self._connection, streams.EVERY_LEDGER)
        prefix = streams.LEDGER_PREFIX
        return tuple(sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)))

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
        while True:
            ack = await jetstream_api.publish_acked(
                self._connection,
                subject,
                data,
                {**(headers or {}), jetstream_api.MESSAGE_ID: message_id},
                timeout_s=timeout_s,
                expected=expected_last_subject_sequence,
            )
            if not ack.is_duplicate or await self._is_stored(subject, data, ack.sequence):
                return ack.sequence
            message_id = f"{message_id}.{fresh_id()}"

    async def _is_stored(self, subject: str, data: bytes, sequence: int) -> bool:
        """Ids in a ledger are derived and can be foreseen; others are random."""
        if not streams.is_of_ledger(subject):
            return True
        record = await direct_reader.stored_record(self._connection, streams.pool_of(subject), {"seq": sequence})
        return is_stored_as(record, subject, data)

    def follow(self, pool: str, *, after_sequence: int) -> Batches:
        return direct_reader.follow_ledger(self._connection, pool, after_sequence)

    async def ledger_end(self, pool: str) -> LedgerEnd:
        return await jetstream_api.ledger_end(self._connection, streams.ledger_stream(pool))

    async def last_subject_sequence(self, subject: str) -> int:
        stream = streams.ledger_stream(streams.pool_of(subject))
        message = await jetstream_api.last_message(self._connection, stream, subject)
        return message.revision if message else 0

    async def last_record(self, subject: str) -> LedgerRecord | None:
        return await direct_reader.stored_record(self._connection, streams.pool_of(subject), {"last_by_subj": subject})

    async def delete_ledger(self, pool: str, *, up_to: int) -> None:
        await jetstream_api.delete_first(self._connection, streams.ledger_stream(pool), up_to=up_to)

    async def work(self, pool: str, consumer_name: str, *, ack_wait_s: float = ACK_WAIT_S) -> WorkQueue:
        return await NatsWorkQueue.open(self._connection, streams.submit_stream(pool), consumer_name, ack_wait_s)

    async def tasks(self, pool: str, load: str, *, ack_wait_s: float = TASK_ACK_WAIT_S) -> WorkQueue:
        return await work_queue.open_tasks(self._connection, pool, load, ack_wait_s)

    def results(self, pool: str, load: str, *, after_sequence: int = 0) -> Batches:
        return stream_follower.follow_results(self._connection, pool, load, after_sequence)

    def result_subjects(self, pool: str, *, after_sequence: int) -> Batches:
        return stream_follower.follow_result_subjects(self._connection, pool, after_sequence)

    async def delete_results(self, pool: str, load: str, *, up_to: int) -> None:
        await work_queue.delete_results(self._connection, pool, load, up_to)

    async def delete_load(self, pool: str, load: str, *, with_results: bool) -> None:
        await work_queue.delete_load(self._connection, pool, load, with_results=with_results)

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        await self._connection.publish(subject, data, reply=reply)

    async def subscribe(self, subject: str, queue: str = "") -> "NatsSubscription":
        inbox = await self._connection.open_inbox(subject, queue, max_messages=MAX_INBOX)
        try:
            await self._connection.flush(DEFAULT_TIMEOUT_S)  # what is published from now on arrives
            self._connection.refusals.check_subscription(subject)
        except BaseException as error:
            await self._connection.close_inbox(inbox)
            if isinstance(error, RequestTimeout | ConnectionBroke):
                raise Unavailable(self._connection.url, str(error) or "connection broke") from None
            raise
        return NatsSubscription(self._connection, inbox)

    async def request(self, subject: str, data: bytes, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        try:
            return (await self._connection.request(subject, data, timeout_s=timeout_s)).data
        except ConnectionBroke:
            raise Unavailable(self._connection.url, "connection broke") from None

    async def put_object(self, bucket: str, name: str, data: bytes) -> None:
        await object_store.put(self._connection, bucket, name, data)

    async def get_object(self, bucket: str, name: str, *, max_bytes: int) -> bytes:
        return await object_store.get(self._connection, bucket, name, max_bytes)

    async def delete_old_objects(self, bucket: str, *, before_s: float, is_needed: Callable[[str], bool]) -> int:
        return await object_store.delete(self._connection, bucket, before_s, is_needed)

    async def get_value(self, bucket: str, key: str) -> Value | None:
        read = jetstream_api.message_in_replica if streams.is_read_by_subject(bucket) else jetstream_api.last_message
        return await read(self._connection, f"KV_{bucket}", streams.value_subject(bucket, key))

    async def put_value(
        self,
        bucket: str,
        key: str,
        data: bytes,
        *,
        expected_revision: int | None = None,
        ttl_s: int | None = None,
    ) -> int:
        ack = await jetstream_api.publish_acked(
            self._connection,
            streams.value_subject(bucket, key),
            data,
            {} if ttl_s is None else {jetstream_api.TTL: f"{ttl_s}s"},
            timeout_s=DEFAULT_TIMEOUT_S,
            expected=expected_revision,
        )
        return ack.sequence

    async def close(self) -> None:
        await self._connection.close()


class NatsSubscription:
    """See `bus.Subscription`."""

    def __init__(self, connection: Connection, inbox: ReplyInbox) -> None:
        self._connection = connection
        self._inbox = inbox

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._inbox.messages:
            if self._inbox.closed:
                raise StopAsyncIteration
            await self._inbox.wait(None)
        message = self._inbox.take()
        return Message(subject=message.subject, data=message.data, reply=message.reply, headers=message.headers or {})

    async def close(self) -> None:
        await self._connection.close_inbox(self._inbox)
