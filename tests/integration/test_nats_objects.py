"""Objects that another client of NATS damaged, or never wrote in full."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from elasticflow.shared.errors import DamagedObject, NotFound
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats import jetstream_api, object_store
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.bus.streams import StreamLimits
from tests.support.shared_pool import POOL

BUCKET, NAME = streams.code_bucket(POOL), "code"
DATA = b"print(1)"


@pytest.fixture
async def bus(nats_server: EmbeddedServer) -> AsyncIterator[NatsBus]:
    bus = await connect_nats(nats_server.url, name="test")
    assert isinstance(bus, NatsBus)
    await bus.ensure_pool(POOL)
    yield bus
    await bus.close()


async def publish(bus: NatsBus, subject: str, data: bytes) -> None:
    await jetstream_api.publish_acked(bus._connection, f"$O.{BUCKET}.{subject}", data, {}, timeout_s=10.0)


async def describe(bus: NatsBus, description: bytes) -> None:
    await publish(bus, f"M.{base64.urlsafe_b64encode(NAME.encode()).decode()}", description)


def described(**changes: Any) -> bytes:
    digest = "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(DATA).digest()).decode()
    values = {"name": NAME, "bucket": BUCKET, "nuid": "n1", "size": len(DATA), "chunks": 1, "digest": digest}
    return json.dumps(values | changes).encode()


async def test_an_object_of_another_client_is_read(bus: NatsBus) -> None:
    await publish(bus, "C.n1", DATA)
    await describe(bus, described(options={"max_chunk_size": 7}, mtime="0001-01-01T00:00:00Z"))
    assert await bus.get_object(BUCKET, NAME, max_bytes=len(DATA)) == DATA


@pytest.mark.parametrize(
    "description",
    [
        b"",
        b"\xff{",
        b"[]",
        b"{}",
        described(nuid=7),
        described(nuid=">"),
        described(chunks="many"),
        described(chunks=-1),
        described(chunks=0),
        described(digest="SHA-256=of another file"),
        described(size=1 << 40),
        described(size=-1),
    ],
)
async def test_a_damaged_object_is_not_read_and_can_be_replaced(bus: NatsBus, description: bytes) -> None:
    await publish(bus, "C.n1", DATA)
    await describe(bus, description)
    with pytest.raises(DamagedObject, match="'code' in EF_CODE_pool-a"):
        await bus.get_object(BUCKET, NAME, max_bytes=len(DATA))
    await bus.put_object(BUCKET, NAME, DATA)
    assert await bus.get_object(BUCKET, NAME, max_bytes=len(DATA)) == DATA


async def test_an_object_that_grows_while_it_is_read_ends_at_the_bound(bus: NatsBus) -> None:
    for _ in range(3):
        await publish(bus, "C.n1", DATA)
    await describe(bus, described(chunks=1 << 40))
    with pytest.raises(DamagedObject, match="more than"):
        await bus.get_object(BUCKET, NAME, max_bytes=2 * len(DATA))


async def test_an_object_without_all_chunks_is_not_there_yet(bus: NatsBus) -> None:
    await describe(bus, described())
    with pytest.raises(NotFound):
        await bus.get_object(BUCKET, NAME, max_bytes=len(DATA))


async def num_messages(bus: NatsBus) -> int:
    info = await bus._connection.api(f"STREAM.INFO.OBJ_{BUCKET}")
    return info["state"]["messages"]


async def test_chunks_without_a_description_are_deleted_once_they_are_old(bus: NatsBus) -> None:
    await publish(bus, "C.n1", DATA)
    await publish(bus, "C.lab.n2", DATA)
    await bus.put_object(BUCKET, "lab/kept", DATA)
    now_s = (await bus.ledger_end(POOL)).at_s
    await bus.delete_old_objects(BUCKET, before_s=now_s - 60.0, is_needed=lambda name: True)
    assert await num_messages(bus) == 4
    await bus.delete_old_objects(BUCKET, before_s=now_s + 60.0, is_needed=lambda name: True)
    assert await num_messages(bus) == 2, "a chunk and its description"
    assert await bus.get_object(BUCKET, "lab/kept", max_bytes=len(DATA)) == DATA


async def test_an_object_that_is_put_again_is_young_again(bus: NatsBus, monkeypatch: pytest.MonkeyPatch) -> None:
    await bus.put_object(BUCKET, NAME, DATA)
    put_s = (await bus.ledger_end(POOL)).at_s
    monkeypatch.setattr(object_store, "_YOUNG_S", 0.0)
    await asyncio.sleep(0.01)
    await bus.put_object(BUCKET, NAME, DATA)
    assert await bus.delete_old_objects(BUCKET, before_s=put_s, is_needed=lambda name: False) == 0
    assert await bus.get_object(BUCKET, NAME, max_bytes=len(DATA)) == DATA


@pytest.mark.parametrize("calls", range(8))
async def test_an_object_that_is_put_while_it_is_deleted_is_there_afterwards(
    bus: NatsBus, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two requests of the deletion."""
    monkeypatch.setattr(object_store, "_YOUNG_S", 0.0)
    await bus.put_object(BUCKET, NAME, DATA)
    before_s = (await bus.ledger_end(POOL)).at_s + 0.001
    await asyncio.sleep(0.01)
    api, left = bus._connection.api, calls

    async def interrupted(*request: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            await bus.put_object(BUCKET, NAME, DATA)
        return await api(*request, **options)

    monkeypatch.setattr(bus._connection, "api", interrupted)
    await bus.delete_old_objects(BUCKET, before_s=before_s, is_needed=lambda name: False)
    monkeypatch.undo()
    if left < 0:
        assert await bus.get_object(BUCKET, NAME, max_bytes=len(DATA)) == DATA


async def test_a_deletion_that_is_killed_goes_on_later(bus: NatsBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the description is gone: the chunks are remains then."""
    await bus.put_object(BUCKET, NAME, DATA)
    before_s = (await bus.ledger_end(POOL)).at_s + 60.0
    api = bus._connection.api

    async def killed(call: str, *rest: Any, **options: Any) -> Any:
        answer = await api(call, *rest, **options)
        if call.startswith("STREAM.PURGE"):
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(bus._connection, "api", killed)
    with pytest.raises(KeyboardInterrupt):
        await bus.delete_old_objects(BUCKET, before_s=before_s, is_needed=lambda name: False)
    monkeypatch.undo()
    assert await num_messages(bus) == 1
    await bus.delete_old_objects(BUCKET, before_s=before_s, is_needed=lambda name: False)
    assert await num_messages(bus) == 0


async def test_a_server_without_the_bucket_of_artifacts_says_so(bus: NatsBus) -> None:
    bucket = streams.artifact_bucket(POOL)
    await bus._connection.api(f"STREAM.DELETE.OBJ_{bucket}")
    with pytest.raises(NotFound):
        await bus.put_object(bucket, streams.artifact_name("lab", "n1", "d" * 64, 0), DATA)


async def test_a_full_bucket_of_artifacts_drops_the_oldest(nats_server: EmbeddedServer) -> None:
    bus = await connect_nats(nats_server.url, name="test", limits=StreamLimits(artifact_bytes=1 << 20))
    await bus.ensure_pool("small")
    bucket = streams.artifact_bucket("small")
    names = [streams.artifact_name("lab", "n1", f"{number:064d}", 0) for number in range(4)]
    for name in names:
        await bus.put_object(bucket, name, bytes(300_000))
    with pytest.raises(NotFound):
        await bus.get_object(bucket, names[0], max_bytes=1 << 20)
    assert len(await bus.get_object(bucket, names[3], max_bytes=1 << 20)) == 300_000
    await bus.close()
