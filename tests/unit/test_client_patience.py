"""A cluster between two leaders answers nobody: the client asks again, for a while."""

from collections.abc import Callable
from typing import Any

import pytest

from elasticflow import client as client_module
from elasticflow import patience
from elasticflow.client import Client
from elasticflow.endpoint import Endpoint
from elasticflow.errors import UnknownPool
from elasticflow.patience import patiently
from shared.errors import BadCredentials, ElasticFlowError, MaybeStored, Unavailable
from shared.messages.job import JobSpec
from shared.runtime import streams
from shared.runtime.memory_bus import MemoryBus

ENDPOINT = Endpoint(nats_url="nats://cluster:4222", pool="p")


def no_leader() -> Unavailable:
    return Unavailable(ENDPOINT.nats_url, "no answer on $JS.API within 5 s")


def failing(*failures: ElasticFlowError) -> Callable[..., Any]:
    """A call that fails with each of these in turn, and then answers "done"."""
    left = list(failures)

    async def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


class BetweenLeaders(MemoryBus):
    """Each call that JetStream answers fails once."""

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

    async def connect(url: str, *, name: str) -> BetweenLeaders:
        return bus

    monkeypatch.setattr(client_module, "connect_nats", connect)
    await bus.ensure_pool(ENDPOINT.pool)
    return bus


async def test_silence_and_doubt_are_asked_again() -> None:
    assert await patiently(failing(no_leader(), MaybeStored("subject", "id"))) == "done"


async def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    with pytest.raises(Unavailable):
        await patiently(failing(no_leader()))


async def test_what_waiting_cannot_mend_comes_at_once() -> None:
    with pytest.raises(BadCredentials):
        await patiently(failing(BadCredentials(ENDPOINT.nats_url)))


async def test_a_client_reads_and_writes_across_an_election(bus: BetweenLeaders) -> None:
    spec = JobSpec(training_function="line:Line", global_batch_size=8, max_iterations=10, deadline_in_s=60.0)
    async with Client.connect(ENDPOINT) as client:
        assert await client.last_sequence() == 0
        await client.post(spec)
    assert bus.failed == ["pool_exists", "last_sequence", "append"]
    assert len(bus.broker.stream(streams.submit_stream(ENDPOINT.pool)).messages) == 1


async def test_a_pool_that_is_not_there_is_not_waited_for(bus: BetweenLeaders) -> None:
    with pytest.raises(UnknownPool):
        async with Client.connect(Endpoint(nats_url=ENDPOINT.nats_url, pool="other")):
            pass
