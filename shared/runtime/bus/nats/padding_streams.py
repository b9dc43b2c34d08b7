"""Tasks and results of padding loads in JetStream. `Bus` says what each function does."""

from elasticflow.shared.errors import MaybeStored, WrongExpectedSequence
from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.jetstream_api import check, delete_consumer, publish_acked
from elasticflow.shared.runtime.bus.nats.work_queue import NatsWorkQueue

_NS = 1_000_000_000
_UNUSED_S = 3600  # the server forgets a load's consumer that no executor has used for so long; its tasks stay
_COUNTED_S = 1  # the same of a consumer that only counts


async def open_tasks(connection: Connection, pool: str, load_id: str, ack_wait_s: float) -> NatsWorkQueue:
    return await NatsWorkQueue.open(
        connection,
        streams.task_stream(pool),
        load_id,
        ack_wait_s,
        filter_subject=subjects.tasks(pool, load_id),
        inactive_threshold=_UNUSED_S * _NS,  # an executor that pulls late makes the consumer of a deleted load again
    )


async def append_first(connection: Connection, subject: str, data: bytes, timeout_s: float) -> bool:
    try:
        await publish_acked(connection, subject, data, {}, timeout_s=timeout_s, expected=0)
    except WrongExpectedSequence as error:
        if error.found is None:  # in a cluster: the first one is on its way, and may get lost with the stream's leader
            raise MaybeStored(subject, "") from None
        return False
    return True


async def num_results(connection: Connection, pool: str, load_id: str) -> int:
    """The number of messages that wait for a new consumer: the server counts faster than it lists subjects."""
    stream = streams.result_stream(pool)
    config = {
        "filter_subject": subjects.every_result(pool, load_id),
        "ack_policy": "none",
        "inactive_threshold": _COUNTED_S * _NS,
        "mem_storage": True,
        "num_replicas": 1,
    }
    answer = await connection.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
    check(answer, stream, connection.url)
    return answer["num_pending"]


async def delete_load(connection: Connection, pool: str, load_id: str, *, with_results: bool) -> None:
    await delete_consumer(connection, streams.task_stream(pool), load_id)
    await _purge(connection, streams.task_stream(pool), subjects.tasks(pool, load_id))
    if with_results:
        await _purge(connection, streams.result_stream(pool), subjects.every_result(pool, load_id))


async def _purge(connection: Connection, stream: str, subject: str) -> None:
    check(await connection.api(f"STREAM.PURGE.{stream}", {"filter": subject}), stream, connection.url)
