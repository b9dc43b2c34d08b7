"""One tenant asks for quotes as fast as it can: how long another one waits for its quotes and decisions.

`python -m benchmarks.pipeline.quotes` prints one JSON object.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import numpy as np

from benchmarks.pipeline.cluster import CLOCK, Cluster, as_bytes, running_cluster, submissions
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import QuoteDeadline, id_of
from elasticflow.shared.messages.events import DeadlineQuoted
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.process.logs import configure_logs
from elasticflow.shared.runtime.service.ledger_encoding import ledger_message

POOL = "quotes"
ASK_EVERY_S = 0.1
SUBMIT_EVERY_S = 0.25
FLOOD_BATCH = 20  # quotes that are asked at once, every FLOOD_EVERY_S
FLOOD_EVERY_S = 0.02


async def measure_quotes(cluster: Cluster, *, seconds: float) -> dict[str, Any]:
    """Milliseconds from a question to its answer, and from a submission to its decision, without and with a flood."""
    await cluster.open_pool(POOL, num_nodes=64, gpus_per_node=8)
    await cluster.start_planners(POOL)
    quiet = await _waits(cluster.bus, seconds, "quiet")
    with _flood(cluster.server.url):
        await asyncio.sleep(2.0)
        flooded = await _waits(cluster.bus, seconds, "flooded")
    cluster.stop_services()
    return {"quiet": quiet, "flooded": flooded, "asked_per_s": FLOOD_BATCH / FLOOD_EVERY_S}


async def _waits(bus: NatsBus, seconds: float, prefix: str) -> dict[str, float]:
    quotes, decisions = await asyncio.gather(_quote_waits_s(bus, seconds), decision_waits_s(bus, POOL, seconds, prefix))
    return {
        f"{name}_p{percentile}_ms": 1e3 * float(np.percentile(waits_s, percentile))
        for name, waits_s in (("quote", quotes), ("decision", decisions))
        for percentile in (50, 99)
    }


async def _quote_waits_s(bus: NatsBus, seconds: float) -> list[float]:
    loop, waits_s = asyncio.get_running_loop(), list[float]()
    command = submissions(1)[0]
    question = QuoteDeadline(tenant="patient", spec=command.spec)
    data = codec.encode(question, id="quote", recorded_at_s=CLOCK.now_s())
    until_s = loop.time() + seconds
    while loop.time() < until_s:
        asked_s = loop.time()
        answer = codec.decode(await bus.request(subjects.quote("patient", POOL), data, 60.0)).message
        assert isinstance(answer, DeadlineQuoted), answer
        waits_s.append(loop.time() - asked_s)
        await asyncio.sleep(ASK_EVERY_S)
    return waits_s


async def decision_waits_s(bus: NatsBus, pool: str, seconds: float, prefix: str) -> list[float]:
    """The waits for decisions of a tenant that submits four jobs a second."""
    loop, sent_s, waits_s = asyncio.get_running_loop(), dict[str, float](), list[float]()
    commands = submissions(int(seconds / SUBMIT_EVERY_S), prefix=prefix, longest_s=10.0)
    first = await bus.last_sequence(pool)

    async def follow() -> None:
        async with aclosing(bus.follow(pool, after_sequence=first)) as batches:  # pyright: ignore[reportArgumentType]
            async for batch in batches:
                for stored in batch:
                    message = ledger_message(stored.subject, stored.data)
                    for command in getattr(message, "commands", ()):
                        if (at_s := sent_s.get(id_of(command))) is not None:
                            waits_s.append(loop.time() - at_s)
                if len(waits_s) == len(commands):
                    return

    following = asyncio.create_task(follow())
    for command in commands:
        sent_s[command.job_id] = loop.time()
        data = as_bytes(command, CLOCK.now_s())
        await bus.append(subjects.submit(command.tenant, pool), data, message_id=command.job_id)
        await asyncio.sleep(SUBMIT_EVERY_S)
    await asyncio.wait_for(following, 120)
    return waits_s


# --- the other tenant -----------------------------------------------------------------------------------


@contextmanager
def _flood(url: str) -> Iterator[None]:
    """Flood the pool from a process of its own."""
    flood = subprocess.Popen([sys.executable, "-m", "benchmarks.pipeline.quotes"], env=os.environ | {"FLOOD_URL": url})
    try:
        yield
    finally:
        flood.kill()
        flood.wait()


async def _ask_without_end(url: str) -> None:
    bus = await connect_nats(url, name="flood")
    answers = await bus.subscribe("_INBOX.flood")
    question = QuoteDeadline(tenant="flood", spec=submissions(1)[0].spec)
    data = codec.encode(question, id="quote", recorded_at_s=CLOCK.now_s())

    async def read() -> None:
        async for _ in answers:
            pass

    reading = asyncio.create_task(read())
    while not reading.done():
        for _ in range(FLOOD_BATCH):
            await bus.publish(subjects.quote("flood", POOL), data, reply="_INBOX.flood")
        await asyncio.sleep(FLOOD_EVERY_S)


async def _measure() -> dict[str, Any]:
    async with running_cluster() as cluster:
        return await measure_quotes(cluster, seconds=10.0)


if __name__ == "__main__":
    configure_logs(level="error")
    if "FLOOD_URL" in os.environ:
        asyncio.run(_ask_without_end(os.environ["FLOOD_URL"]))
    else:
        print(json.dumps(asyncio.run(_measure()), indent=2))
