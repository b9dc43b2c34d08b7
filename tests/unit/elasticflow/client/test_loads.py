"""A client that maps, beside admission on the in-memory bus: who may feed a load, and what an outage changes."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticflow.client import loads
from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.errors import LoadNotOpened, LoadWasCancelled, NotThere, Undecided
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.shared.errors import ElasticFlowError, Unavailable
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.messages.events import LoadSealed, SealRejected
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import ResultBatch, TaskResult, encode_results
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.load_lease import has_load_lease, take_load_lease
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.service.replica import open_replica
from elasticflow.shared.state.load import LoadPhase
from elasticflow.simulator.pipeline.memory_broker import MemoryBroker
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from tests.support.error_codes import coded
from tests.support.service_contexts import service_context
from tests.support.shared_pool import add_result, next_of

POOL = "p"
SPEC = LoadSpec(task_function="jobs.fold:fold", task_s=1.0)
OUTAGE = Unavailable("memory://", "no answer")


class FaultyBus(MemoryBus):
    """delete_errors: one for each deletion of results, until there are none left."""

    delete_errors: list[ElasticFlowError]

    async def delete_results(self, pool: str, load_id: str, *, up_to: int) -> None:
        if self.delete_errors:
            raise self.delete_errors.pop(0)
        await super().delete_results(pool, load_id, up_to=up_to)


class FaultyClient(Client):
    """seal_errors: one for each attempt to seal the load, until there are none left."""

    seal_errors: list[ElasticFlowError]

    async def seal_load(self, *args: Any, **options: Any) -> LoadSealed | SealRejected:
        if self.seal_errors:
            raise self.seal_errors.pop(0)
        return await super().seal_load(*args, **options)


def result_of(index: int, value: bytes = b"") -> bytes:
    """A message of an executor."""
    result = TaskResult(index=index, value=value, attempts=1, task_s=1.0, node_id="n")
    return encode_results(ResultBatch(results=(result,)))


class OnePool:
    """A pool with load a. The test takes the parts of its executors and of its monitor."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)

    def client(self, bus: MemoryBus | None = None) -> FaultyClient:
        used: Any = bus or MemoryBus(self.broker)
        client = FaultyClient(used, Endpoint(nats_url="memory://", pool=POOL), "lab", SystemClock())
        client.seal_errors = []
        return client

    async def store_result(self, index: int) -> int:
        """As an executor; its sequence."""
        return await add_result(self.bus, await self.bus_name(), index, result_of(index), pool=POOL)

    async def bus_name(self) -> str:
        """Of load a."""
        load = (await self.client().state()).loads.get("a")
        return load.bus_name if load is not None else "a"

    async def report(self, event: events.LoadProgressed | events.LoadFinished) -> None:
        """As the monitor."""
        message_id = type(event).__name__
        data = codec.encode(event, id=message_id, recorded_at_s=event.at_s)
        await self.bus.append_event(subjects.load(POOL, "a"), data, message_id=message_id)

    async def phase(self) -> LoadPhase | None:
        load = (await self.client().state()).loads.get("a")
        return load.phase if load is not None else None

    async def is_sealed(self) -> bool:
        return await self.phase() is LoadPhase.SEALED

    async def has_lease(self) -> bool:
        return await has_load_lease(self.bus, POOL, await self.bus_name())

    async def has_no_results(self) -> bool:
        return not self.broker.stream(streams.result_stream(POOL)).messages


@pytest.fixture
async def pool() -> AsyncIterator[OnePool]:
    pool = OnePool()
    await pool.bus.ensure_pool(POOL)
    admission = await open_replica(
        service_context(pool.bus, POOL, log=SilentLog()),
        ADMISSION,
    )
    running = asyncio.create_task(admission.run())
    yield pool
    running.cancel()
    await asyncio.wait({running})


class BlockedInputs:
    """The input 0, and no end of inputs until the test sets it."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def __iter__(self) -> Iterator[int]:
        yield 0
        self.end.wait()


@pytest.fixture
def inputs() -> Iterator[BlockedInputs]:
    inputs = BlockedInputs()
    yield inputs
    inputs.end.set()


@contextlib.asynccontextmanager
async def mapping(client: Client, inputs: BlockedInputs) -> AsyncGenerator["asyncio.Task[list[TaskResult]]"]:
    """Follows load a until its end, or cancels it."""

    async def follow() -> list[TaskResult]:
        return [result async for result in client.results_of(inputs, SPEC, load_id="a")]

    task = asyncio.create_task(follow())
    yield task
    task.cancel()
    await asyncio.wait({task})


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - the pool is the client's own
            await asyncio.sleep(0.01)


async def test_a_load_that_another_client_feeds_is_not_opened(pool: OnePool, inputs: BlockedInputs) -> None:
    async with mapping(pool.client(), inputs):
        await until(pool.has_lease)
        with pytest.raises(LoadNotOpened, match="another client feeds a load of this name"):
            await next_of(pool.client().results_of([1], SPEC, load_id="a"))
        assert await pool.phase() is LoadPhase.OPEN, "the first client goes on"


async def test_a_client_neither_meets_nor_feeds_an_earlier_load_of_the_id(pool: OnePool, inputs: BlockedInputs) -> None:
    """What an earlier load has left: results, tasks, and the lease of its client."""
    await take_load_lease(pool.bus, POOL, "a=earlier", "its client")
    for left in ("a", "a=earlier"):
        await add_result(pool.bus, left, 0, result_of(0, b"of another tenant"), pool=POOL)
    async with mapping(pool.client(), inputs) as mapped:
        await until(pool.has_lease)
        assert (await pool.bus_name()).startswith("a=")
        await pool.store_result(0)
        inputs.end.set()
        await until(pool.is_sealed)
        await pool.report(events.LoadFinished(load_id="a", num_results=1, at_s=2.0))
        assert [result.value for result in await mapped] == [b""]
    tasks = pool.broker.stream(streams.task_stream(POOL))
    assert not [record for record in tasks.messages.values() if record.subject == subjects.tasks(POOL, "a")]


async def test_results_are_those_of_the_client_that_opened_the_load_while_it_runs(
    pool: OnePool, inputs: BlockedInputs
) -> None:
    async with mapping(pool.client(), inputs):
        await until(pool.has_lease)
        with pytest.raises(NotThere, match="still runs and receives its results", check=coded("load_in_use")):
            await next_of(pool.client().stored_results("a"))
    with pytest.raises(LoadWasCancelled, match="its client stopped"):
        await next_of(pool.client().stored_results("a"))


async def test_the_results_of_a_load_that_is_sent_may_be_read_at_once(pool: OnePool) -> None:
    await pool.client().send_load([0], SPEC, load_id="a")
    await pool.store_result(0)
    assert (await next_of(pool.client().stored_results("a"))).index == 0


async def test_the_files_of_a_load_are_deleted_with_its_results_and_those_of_others_are_not(
    pool: OnePool, tmp_path: Path
) -> None:
    await pool.client().send_load([0], SPEC, load_id="a")
    client = pool.client()
    client.endpoint = replace(client.endpoint, data_dir=tmp_path)
    own = await client.result_folder("a")
    of_another = tmp_path / "results" / "a.1f"
    assert own is not None
    for folder in (own, of_another):
        folder.mkdir(parents=True)
    await client.delete_stored_results("a")
    assert (own.exists(), of_another.exists()) == (False, True)
    await client.delete_stored_results("../results/a")
    assert of_another.exists(), "the ledger has no such load"


async def test_a_load_is_sealed_after_an_outage(
    pool: OnePool, inputs: BlockedInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "RETRY_S", 0.01)
    client = pool.client()
    client.seal_errors = [OUTAGE, Undecided("a", 30.0)]
    async with mapping(client, inputs) as results:
        await until(pool.has_lease)
        await pool.store_result(0)
        inputs.end.set()
        await until(pool.is_sealed)
        await pool.report(events.LoadFinished(load_id="a", num_results=1, at_s=2.0))
        async with asyncio.timeout(60):
            assert [result.index for result in await results] == [0]


async def test_read_results_are_deleted_after_an_outage_without_another_report(
    pool: OnePool, inputs: BlockedInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "DELETE_EVERY_S", 0.01)
    bus = FaultyBus(pool.broker)
    bus.delete_errors = [OUTAGE, OUTAGE]
    async with mapping(pool.client(bus), inputs):
        await until(pool.has_lease)
        sequence = await pool.store_result(0)
        await pool.report(
            events.LoadProgressed(load_id="a", num_results=1, counted=((0, 0),), counted_to=sequence, at_s=1.0)
        )
        await until(pool.has_no_results)
