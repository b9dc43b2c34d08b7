"""Three NATS servers; the one that leads the ledger is cut off, and a client reads from it what the others have stored.

The command (arguments: seed, folder) needs namespaces of its own: see `benchmarks.partitions.network`. It prints one
JSON object: the last sequence that the client has read, the shorter ledger's end, and the next sequence that arrived.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.partitions.network import SERVERS, Network, start_server, url_of
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.streams import StreamLimits
from testbed.planned_ledger import POOL

TIMEOUT_S = 120.0
NUM_MISSED = 5  # messages that the others store meanwhile

T = TypeVar("T")


async def main(folder: Path) -> dict[str, int]:
    network = Network(SERVERS)
    for server in SERVERS:
        start_server(network, server, folder)
    async with asyncio.timeout(TIMEOUT_S):
        anywhere = await _connected(*(url_of(network, server) for server in SERVERS))
        await _persistently(lambda: anywhere.ensure_pool(POOL))
        await _append(anywhere, 1)
        leader = (await _info(anywhere))["cluster"]["leader"]
        await anywhere.close()
        others = [server for server in SERVERS if server != leader]
        writer = await _connected(*(url_of(network, server) for server in others))
        reader = await _connected(url_of(network, leader))
        network.drop([leader], others)
        network.drop(others, [leader])
        read = [await _append(writer, 2 + number) for number in range(NUM_MISSED)][-1]
        async with aclosing(reader.follow(POOL, after_sequence=read)) as batches:
            next_batch = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)  # it asks first
            end = (await _info(reader))["state"]["last_seq"]
            network.heal()
            await _append(writer, 2 + NUM_MISSED)
            (stored, *_) = await next_batch
    return {"read": read, "end": end, "next": stored.sequence}


async def _connected(*urls: str) -> NatsBus:
    limits = StreamLimits(replicas=len(SERVERS))
    return await connect_nats(",".join(urls), name="test", wait_s=TIMEOUT_S, limits=limits)


async def _info(bus: NatsBus) -> dict[str, Any]:
    return await bus._connection.api(f"STREAM.INFO.{streams.ledger_stream(POOL)}")  # pyright: ignore[reportPrivateUsage]


async def _append(bus: NatsBus, number: int) -> int:
    return await _persistently(lambda: bus.append(subjects.plan(POOL), b"", message_id=str(number), timeout_s=1.0))


async def _persistently(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except Retry:
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[2])))))
