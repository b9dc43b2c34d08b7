"""The client's ledger: streams for slow readers, and calls while a cluster elects a leader."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any, BinaryIO, cast

import pytest

from elasticflow.client import client as client_module
from elasticflow.client.client import Client
from elasticflow.client.ledger import LedgerEntry, LedgerView, stream_ledger
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.errors import UnknownPool
from elasticflow.shared.errors import ElasticFlowError, MaybeStored, Unavailable
from elasticflow.shared.messages.export import LedgerRecord, records_in
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.bus import streams
from elasticflow.simulator.pipeline.memory_bus import MemoryBus

WAIT_S = 240.0


class LongLedger:
    """A ledger without end."""

    async def entries(self) -> AsyncGenerator[LedgerEntry, None]:
        sequence = 0
        while True:
            sequence += 1
            yield (
                LedgerRecord(
                    subject="ef.ledger.p.plan",
                    sequence=sequence,
                    data=b"x" * 100,
                    message_id="",
                    stored_at_s=0.0,
                ),
                None,
            )


@contextlib.asynccontextmanager
async def streaming() -> AsyncGenerator[tuple[asyncio.Task[None], BinaryIO], None]:
    """The task that streams a long ledger, and the reading end of its pipe."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "wb") as pipe:
        task = asyncio.create_task(stream_ledger(cast(LedgerView, LongLedger()), pipe))
        try:
            yield task, reader
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=WAIT_S)


async def test_a_slow_reader_delays_only_the_stream() -> None:
    async with streaming() as (task, reader):
        first = await asyncio.to_thread(lambda: next(iter(records_in(reader))))
        assert first.sequence == 1
        task.cancel()  # the pipe is full; the task can still be cancelled
        await asyncio.wait([task], timeout=WAIT_S)
        assert task.cancelled()


async def test_a_closed_pipe_ends_the_stream() -> None:
    async with streaming() as (task, reader):
        reader.close()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(ConnectionError):
                await task


ENDPOINT = Endpoint(nats_url="nats://cluster:4222", pool="p")


def no_leader() -> Unavailable:
    return Unavailable(ENDPOINT.nats_url, "no reply on $JS.API within 5 s")


class BetweenLeaders(MemoryBus):
    """A bus on which each JetStream call fails once."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[str] = []

    def _fail_once(self, call: str, error: ElasticFlowError) -> None:
        if call not in self.failed:
            self.failed.append(call)
            raise error

    async def last_sequence(self, pool: str) -> int:
        self._fail_once("last_sequence", no_leader())
        return await super().last_sequence(pool)

    async def pool_exists(self, pool: str) -> bool:
        self._fail_once("pool_exists", no_leader())
        return await super().pool_exists(pool)

    async def append(self, subject: str, data: bytes, *, message_id: str, **options: Any) -> int:
        self._fail_once("append", MaybeStored(subject, message_id))
        return await super().append(subject, data, message_id=message_id, **options)


@pytest.fixture
async def bus(monkeypatch: pytest.MonkeyPatch) -> BetweenLeaders:
    bus = BetweenLeaders()

    async def connect(url: str, *, name: str, access: object) -> BetweenLeaders:
        return bus

    monkeypatch.setattr(client_module, "connect_nats", connect)
    await bus.ensure_pool(ENDPOINT.pool)
    return bus


async def test_a_client_reads_and_writes_across_an_election(bus: BetweenLeaders) -> None:
    spec = JobSpec(training_function="line:Line", global_batch_size=8, max_iterations=10, deadline_in_s=60.0)
    async with Client.connect(ENDPOINT) as client:
        assert await client.last_sequence() == 0
        await client.post(spec)
    assert bus.failed == ["pool_exists", "last_sequence", "append"]
    assert len(bus.broker.stream(streams.submit_stream(ENDPOINT.pool)).messages) == 1


async def test_an_unknown_pool_is_not_retried(bus: BetweenLeaders) -> None:
    with pytest.raises(UnknownPool):
        async with Client.connect(Endpoint(nats_url=ENDPOINT.nats_url, pool="other")):
            pass
