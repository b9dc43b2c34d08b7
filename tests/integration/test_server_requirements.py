"""What a pool needs of its NATS server: the contract of every bus, and the checks of a real server at the start."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from elasticflow.client.operator_decisions import configure
from elasticflow.shared.errors import BadSettings, ServerTooSmall, TooFewReplicas, UnknownStream
from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats import embedded_server
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.bus.streams import MAX_PAYLOAD_BYTES, StreamLimits, stream_configs
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.simulator.pipeline.memory_broker import MemoryBroker
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from testbed.real_pool import persistently
from testbed.secured_pool import deployed, serving
from tests.support.shared_pool import PLAN, POOL, SUBMIT, Connect, add_result

DEFAULT_PAYLOAD_BYTES = 1 << 20  # of a nats-server without the setting


@pytest.fixture(params=["memory", "nats"])
async def small(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    """A client of a server whose largest message is nats-server's default."""
    if request.param == "memory":
        yield MemoryBus(MemoryBroker(max_payload_bytes=DEFAULT_PAYLOAD_BYTES))
        return
    monkeypatch.setattr(embedded_server, "MAX_PAYLOAD_BYTES", DEFAULT_PAYLOAD_BYTES)
    with EmbeddedServer(tmp_path) as server:
        bus = await connect_nats(server.url, name="test")
        yield bus
        await bus.close()


async def test_a_server_with_a_smaller_message_than_a_decision_is_refused(small: Bus) -> None:
    with pytest.raises(ServerTooSmall) as refused:
        await small.ensure_pool(POOL)
    assert refused.value.setting == "max_payload"
    assert (refused.value.found_bytes, refused.value.needed_bytes) == (DEFAULT_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES)
    assert not await small.pools(), "no pool is made"
    assert f"set max_payload: {MAX_PAYLOAD_BYTES}" in str(refused.value)


@pytest.mark.parametrize("made", [False, True])
async def test_the_storage_of_a_new_pool_is_checked_and_an_old_pool_continues(
    made: bool, nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server reserves the bounds of a pool's streams; one that started on a full disk has no space for new ones."""
    if made:
        await configure(nats_server.url, POOL, None, SystemClock())
    nats_server.stop()
    monkeypatch.setattr(embedded_server, "_storage_bound", lambda folder: 100 << 20)
    nats_server.start()
    if made:
        await configure(nats_server.url, POOL, None, SystemClock())
        return
    with pytest.raises(ServerTooSmall, match="max_file_store") as refused:
        await configure(nats_server.url, POOL, None, SystemClock())
    assert refused.value.needed_bytes == StreamLimits().reserved_bytes


async def test_a_pool_of_an_older_version_gets_the_streams_of_padding_loads(connect: Connect, bus: Bus) -> None:
    await remove_padding_streams(bus)
    with pytest.raises(UnknownStream):
        await bus.append(subjects.tasks(POOL, "load"), b"", message_id="1")
    sequence = await bus.append(PLAN, b"kept", message_id="1")
    await (await connect()).ensure_pool(POOL)
    await bus.append(subjects.tasks(POOL, "load"), b"", message_id="1")
    assert await add_result(bus, "load", 0)
    assert await bus.last_sequence(POOL) == sequence


async def remove_padding_streams(bus: Bus) -> None:
    """As a pool is that was made before there were padding loads."""
    for name in streams.padding_streams(POOL):
        if isinstance(bus, MemoryBus):
            del bus.broker._streams[name]
        elif isinstance(bus, NatsBus):
            assert "error" not in await bus._connection.api(f"STREAM.DELETE.{name}")


async def test_a_pool_of_an_older_version_starts_without_storage_for_padding_loads(
    nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs continue; padding loads wait for an operator who gives the server more storage."""
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    await remove_padding_streams(bus)
    await bus.close()
    nats_server.stop()
    with monkeypatch.context() as small:
        small.setattr(embedded_server, "_storage_bound", lambda folder: 600 << 20)
        nats_server.start()
    bus = await connect_nats(nats_server.url, name="test")
    with structlog.testing.capture_logs() as logs:
        await bus.ensure_pool(POOL)
    assert [(log["event"], log["stream"]) for log in logs] == [
        ("no_space_for_padding_loads", name) for name in streams.padding_streams(POOL)
    ]
    await bus.append(SUBMIT, b"job", message_id="1")
    with pytest.raises(UnknownStream):
        await add_result(bus, "load", 0)
    await bus.close()
    nats_server.stop()
    nats_server.start()
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    assert await add_result(bus, "load", 0)
    await bus.close()


async def test_streams_with_fewer_replicas_than_asked_for_are_named_with_the_command(
    connect: Connect, bus: Bus
) -> None:
    wanting = await connect(StreamLimits(replicas=3))
    with pytest.raises(TooFewReplicas) as refused:
        await wanting.ensure_pool(POOL)
    assert (refused.value.found, refused.value.wanted) == (1, 3)
    assert set(refused.value.streams) == {config["name"] for config in stream_configs(POOL, StreamLimits())}
    assert f"nats stream edit {streams.ledger_stream(POOL)} --replicas 3 --force" in str(refused.value)


async def test_a_new_pool_with_more_replicas_than_servers_is_refused(connect: Connect, bus: Bus) -> None:
    with pytest.raises(BadSettings, match="EF_REPLICAS=3"):
        await (await connect(StreamLimits(replicas=3))).ensure_pool("new")
    assert await bus.pools() == (POOL,)


async def test_an_account_that_may_store_too_little_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "server.conf"
    config.write_text(f"""
        listen: "127.0.0.1:-1"
        max_payload: {MAX_PAYLOAD_BYTES}
        jetstream {{ store_dir: "{tmp_path}" }}
        accounts {{ lab {{ jetstream {{ max_file: 100MB }}, users: [{{ user: u, password: p }}] }} }}
    """)
    async with serving(config) as url:
        bus = await connect_nats(url.replace("//", "//u:p@"), name="test", wait_s=60.0)
        with pytest.raises(ServerTooSmall, match="max_file") as refused:
            await bus.ensure_pool(POOL)
        assert refused.value.found_bytes == 100 << 20
        await bus.close()


async def test_the_configuration_for_containers_has_what_a_pool_needs(tmp_path: Path) -> None:
    async with deployed(tmp_path) as url:
        bus = await connect_nats(url, name="test", wait_s=60.0)
        await bus.ensure_pool(POOL)
        await bus.close()


@pytest.mark.parametrize(("store", "refused"), [("1GB", False), ("500MB", True)])
async def test_servers_of_a_cluster_with_little_space_make_a_pool_without_artifacts_or_none(
    store: str, refused: bool, tmp_path: Path
) -> None:
    async with deployed(tmp_path, num_servers=3, store=store) as url:
        bus = await connect_nats(url, name="test", wait_s=60.0, limits=StreamLimits(replicas=3))
        with (
            structlog.testing.capture_logs() as logs,
            pytest.raises(ServerTooSmall, match="max_file_store") if refused else contextlib.nullcontext(),
        ):
            await persistently(lambda: bus.ensure_pool(POOL))
        left_out = [log["stream"] for log in logs if log["event"] == "no_space_for_optional_stream"]
        assert (streams.optional_streams(POOL)[0] in left_out) != refused
        await bus.close()


async def test_a_pool_of_a_cluster_gets_more_replicas_by_the_command_of_the_error(tmp_path: Path) -> None:
    async with deployed(tmp_path, num_servers=3) as url:
        one = await connect_nats(url, name="one", wait_s=60.0)
        await persistently(lambda: one.ensure_pool(POOL))
        three = await connect_nats(url, name="three", limits=StreamLimits(replicas=3))
        with pytest.raises(TooFewReplicas) as refused:
            await three.ensure_pool(POOL)
        for name in refused.value.streams:  # as `nats stream edit NAME --replicas 3` does
            config = (await three._connection.api(f"STREAM.INFO.{name}"))["config"]
            answer = await three._connection.api(f"STREAM.UPDATE.{name}", config | {"num_replicas": 3}, timeout_s=30.0)
            assert "error" not in answer
        await persistently(lambda: three.ensure_pool(POOL))
        await persistently(lambda: one.ensure_pool(POOL))  # more than asked for
        await one.close()
        await three.close()
