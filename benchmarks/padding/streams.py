"""How fast tasks of padding loads pass the bus, beside JetStream without it.

One client publishes, pulls and acknowledges one message after another, so that the numbers are of latencies: each
publish waits until the embedded server has written it to disk. Executors and clients work concurrently and get more.
"""

import asyncio
import tempfile
from pathlib import Path

from nats.aio.client import Client

from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.padding_tasks import (
    ResultBatch,
    TaskBundle,
    TaskResult,
    decode_bundle,
    decode_results,
    encode_bundle,
    encode_results,
)
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer

POOL = "bench"
_TIMEOUT_S = 30.0


async def measure_streams(
    *, num_messages: int = 1_000, input_bytes: int = 100, tasks_per_bundle: tuple[int, ...] = (1, 100)
) -> dict[str, dict[str, float]]:
    """Messages and tasks per second, by what was measured.

    num_messages: in each of the measurements. input_bytes: of one task, and of its result.
    """
    with tempfile.TemporaryDirectory(prefix="ef-bench-") as folder, EmbeddedServer(Path(folder)) as server:
        bus = await connect_nats(server.url, name="benchmark")
        try:
            await bus.ensure_pool(POOL)
            measured = {"raw": await _raw(server.url, num_messages, input_bytes)}
            for num_tasks in tasks_per_bundle:
                bundles = _bundles(num_messages, num_tasks, input_bytes)
                of_bundles = await _through_bus(bus, f"load-{num_tasks}", bundles)
                of_results = await _results(bus, num_messages, num_tasks, input_bytes)
                measured[f"bundles_of_{num_tasks}"] = of_bundles | of_results
            return measured
        finally:
            await bus.close()


async def _raw(url: str, num_messages: int, num_bytes: int) -> dict[str, float]:
    """nats-py alone, on the stream of the pool."""
    client = Client()
    await client.connect(url)
    try:
        jetstream, subject = client.jetstream(), subjects.tasks(POOL, "raw")
        with _Stopwatch() as publishing:
            for _ in range(num_messages):
                await jetstream.publish(subject, bytes(num_bytes))
        consumer = await jetstream.pull_subscribe(subject, durable="raw", stream=streams.task_stream(POOL))
        with _Stopwatch() as pulling:
            for _ in range(num_messages):
                (message,) = await consumer.fetch(1, timeout=_TIMEOUT_S)
                await message.ack()
        return _per_second(num_messages, publish=publishing.s, pull_and_ack=pulling.s)
    finally:
        await client.close()


async def _through_bus(bus: Bus, load_id: str, bundles: list[TaskBundle]) -> dict[str, float]:
    """Bundles encoded and appended, then pulled, decoded and acknowledged."""
    with _Stopwatch() as publishing:
        for number, bundle in enumerate(bundles):
            subject = subjects.tasks(POOL, load_id)
            await bus.append(subject, encode_bundle(bundle), message_id=f"{load_id}-{number}")
    queue = await bus.tasks(POOL, load_id)
    num_tasks = 0
    with _Stopwatch() as pulling:
        for _ in bundles:
            (item,) = await queue.pull(1, _TIMEOUT_S)
            num_tasks += len(decode_bundle(item.data).tasks)
            await item.ack()
    await queue.close()
    await bus.delete_load(POOL, load_id, with_results=True)
    per_second = _per_second(len(bundles), publish=publishing.s, pull_and_ack=pulling.s)
    return per_second | _per_second(num_tasks, publish_tasks=publishing.s, pull_and_ack_tasks=pulling.s)


async def _results(bus: Bus, num_messages: int, tasks_per_bundle: int, num_bytes: int) -> dict[str, float]:
    """The results of bundles stored one after another, then read."""
    load_id = f"results-{tasks_per_bundle}"
    num_tasks = num_messages * tasks_per_bundle
    with _Stopwatch() as storing:
        for first in range(0, num_tasks, tasks_per_bundle):
            await _store(bus, load_id, range(first, first + tasks_per_bundle), num_bytes)
    num_read = 0
    with _Stopwatch() as reading:
        async for batch in bus.results(POOL, load_id):
            num_read += sum(len(decode_results(record.data).results) for record in batch)
            if num_read == num_tasks:
                break
    await bus.delete_load(POOL, load_id, with_results=True)
    return _per_second(num_tasks, store_tasks=storing.s, read_tasks=reading.s)


async def _store(bus: Bus, load_id: str, indices: range, num_bytes: int) -> None:
    results = (
        TaskResult(index=index, value=bytes(num_bytes), attempts=1, task_s=0.1, node_id="node-0") for index in indices
    )
    data = encode_results(ResultBatch(results=tuple(results)))
    subject = subjects.results(POOL, load_id, indices[0], indices[-1])
    await bus.append(subject, data, message_id=f"{load_id}-{indices[0]}")


def _bundles(count: int, num_tasks: int, input_bytes: int) -> list[TaskBundle]:
    tasks = [(index, bytes(input_bytes)) for index in range(count * num_tasks)]
    return [TaskBundle(tasks=tuple(tasks[start : start + num_tasks])) for start in range(0, len(tasks), num_tasks)]


def _per_second(count: int, **taken_s: float) -> dict[str, float]:
    return {f"{name}_per_s": count / seconds for name, seconds in taken_s.items()}


class _Stopwatch:
    """s: the seconds that its block took."""

    def __enter__(self) -> "_Stopwatch":
        self.s = 0.0
        self._start_s = asyncio.get_running_loop().time()
        return self

    def __exit__(self, *error: object) -> None:
        self.s = asyncio.get_running_loop().time() - self._start_s
