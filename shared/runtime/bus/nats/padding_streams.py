"""Tasks and results of padding loads in JetStream. `Bus` says what each function does."""

from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.jetstream_api import check, delete_consumer
from elasticflow.shared.runtime.bus.nats.work_queue import NatsWorkQueue

_NS = 1_000_000_000
_UNUSED_S = 3600  # the server forgets a load's consumer that no executor has used for so long; its tasks stay


async def open_tasks(connection: Connection, pool: str, load_id: str, ack_wait_s: float) -> NatsWorkQueue:
    return await NatsWorkQueue.open(
        connection,
        streams.task_stream(pool),
        load_id,
        ack_wait_s,
        filter_subject=subjects.tasks(pool, load_id),
        inactive_threshold=_UNUSED_S * _NS,  # an executor that pulls late makes the consumer of a deleted load again
    )


async def delete_results(connection: Connection, pool: str, load_id: str, up_to: int) -> None:
    await _purge(connection, streams.result_stream(pool), subjects.every_result(pool, load_id), seq=up_to + 1)


async def delete_load(connection: Connection, pool: str, load_id: str, *, with_results: bool) -> None:
    await delete_consumer(connection, streams.task_stream(pool), load_id)
    await _purge(connection, streams.task_stream(pool), subjects.tasks(pool, load_id))
    if with_results:
        await _purge(connection, streams.result_stream(pool), subjects.every_result(pool, load_id))


async def _purge(connection: Connection, stream: str, subject: str, **bound: int) -> None:
    check(await connection.api(f"STREAM.PURGE.{stream}", {"filter": subject, **bound}), stream, connection.url)
