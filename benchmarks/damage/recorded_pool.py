"""A pool's data folder with every kind of stored data, recorded once and copied for each damage."""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from elasticflow.client.archive_ledger import archive
from elasticflow.client.ledger import LedgerView
from elasticflow.client.operator_decisions import configure
from elasticflow.shared.messages import codec, events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.ledger_bookmark import LedgerBookmark
from elasticflow.shared.runtime.service.ledger_encoding import subject_of
from elasticflow.shared.runtime.service.snapshot_store import Snapshot

POOL = "default"
CLOCK = SystemClock()
CODE = bytes(range(256)) * 3_000  # two chunks
TENANT, NODE = "lab", "node-0"
OBJECTS = (
    (streams.code_bucket(POOL), streams.code_name(TENANT, "ab" * 32)),
    (streams.artifact_bucket(POOL), streams.artifact_name(TENANT, NODE, "ab" * 32, 0)),
)
VALUES = (
    (streams.node_bucket(POOL), NODE),
    (streams.log_bucket(POOL), streams.log_key(TENANT, NODE, "job", "0")),
    (streams.view_bucket(POOL), streams.POOL_VIEW_KEY),
    (streams.state_bucket(POOL), "lease"),
)
VALUE = b"value " * 40
_BEFORE_EPOCH, _BEFORE_SNAPSHOT, _AFTER_SNAPSHOT = 8, 20, 4  # decisions


@dataclass(frozen=True, slots=True)
class RecordedPool:
    """folder: with NATS's data in `nats`, and archives in `archives`."""

    folder: Path

    @property
    def archives(self) -> Path:
        return self.folder / "archives"

    def server(self) -> EmbeddedServer:
        return EmbeddedServer(self.folder / "nats", token="recorded")

    def copied(self, folder: Path, *, is_clean: bool = True) -> "RecordedPool":
        """is_clean: NATS was stopped; else it was killed, and reads all messages when it starts."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)
        if not is_clean:
            for index in (folder / "nats").rglob("index.db"):
                index.unlink()
        return RecordedPool(folder)

    def stream_folder(self, stream: str) -> Path:
        return self.folder / "nats" / "jetstream" / "$G" / "streams" / stream


def record(folder: Path) -> RecordedPool:
    """An archived epoch, of which only the archive is left, a snapshot, and messages after both; objects and values; a
    bookmark at the end."""
    pool = RecordedPool(folder)
    with pool.server() as server:
        asyncio.run(_fill(server.url, pool))
    return pool


async def _fill(url: str, pool: RecordedPool) -> None:
    bus = await connect_nats(url, name="record")
    try:
        await bus.ensure_pool(POOL)
        await _decide(url, bus, _BEFORE_EPOCH)
        await archive(url, POOL, pool.archives, CLOCK, delete=True, on_message=lambda done, of: None)
        await _decide(url, bus, _BEFORE_SNAPSHOT)
        state, chain = await LedgerView(bus, POOL).state_and_chain()
        await snapshot_store.save(bus, POOL, Snapshot(state=state, chain=chain.digest), CLOCK.now_s())
        await _decide(url, bus, _AFTER_SNAPSHOT)
        for bucket, name in OBJECTS:
            await bus.put_object(bucket, name, CODE)
        for bucket, key in VALUES:
            await bus.put_value(bucket, key, VALUE)
        last = await bus.last_sequence(POOL)
        async for (newest,) in bus.read(POOL, after_sequence=last - 1, up_to=last):
            LedgerBookmark.of_reader(pool.folder, POOL, NODE).move(newest)
    finally:
        await bus.close()


async def _decide(url: str, bus: NatsBus, times: int) -> None:
    """Each with an event of a node after it."""
    for _ in range(times):
        number = await bus.last_sequence(POOL)
        await configure(url, POOL, PoolConfig(leave_s=30.0 + number), CLOCK)
        joined = events.NodeJoined(
            node_id=NODE, incarnation=f"run-{number}", num_gpus=4, device="cpu", at_s=CLOCK.now_s()
        )
        message_id = f"joined-{number}"
        data = codec.encode(joined, id=message_id, recorded_at_s=joined.at_s)
        await bus.append(subject_of(POOL, joined), data, message_id=message_id)
