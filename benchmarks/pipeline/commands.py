"""One tenant publishes commands as fast as the pool stores them: how long another one waits for its decisions.

`python -m benchmarks.pipeline.commands` prints one JSON object.
"""

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.pipeline.cluster import CLOCK, Cluster, running_cluster, submissions
from benchmarks.pipeline.quotes import decision_waits_s
from elasticflow.shared.errors import Retry, StorageFull
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import CancelJob, Command
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.streams import StreamLimits, submit_stream
from elasticflow.shared.runtime.process.logs import configure_logs

PUBLISHERS = 64
WAIT_WHEN_FULL_S = 0.25
_TEMPLATE = submissions(1)[0]


def _cancellation(job_id: str) -> Command:
    """The cancellation of an unknown job: the cheapest command."""
    return CancelJob(job_id=job_id, tenant="flood")


def _submission(job_id: str) -> Command:
    """That cannot be kept, so that the pool stays as it is."""
    return replace(_TEMPLATE, job_id=job_id, tenant="flood", spec=replace(_TEMPLATE.spec, deadline_in_s=0.01))


FLOODS: dict[str, Callable[[str], Command]] = {"cancellations": _cancellation, "submissions": _submission}


async def measure_commands(cluster: Cluster, *, seconds: float) -> dict[str, Any]:
    """Milliseconds from a submission to its decision, without and with each flood."""
    measured: dict[str, Any] = {}
    for kind in FLOODS:
        pool = f"flood-{kind}"
        await _make_with_limits(cluster, pool)
        await cluster.open_pool(pool, num_nodes=64, gpus_per_node=8)
        await cluster.start_planners(pool)
        quiet = _percentiles(await decision_waits_s(cluster.bus, pool, seconds, "quiet"))
        with _flood(cluster.server.url, pool, kind):
            await asyncio.sleep(3.0)
            before = await _num_stored(cluster, pool)
            flooded = _percentiles(await decision_waits_s(cluster.bus, pool, seconds, "flooded"))
            stored = await _num_stored(cluster, pool) - before
        cluster.stop_services()
        ratio = flooded["p99_ms"] / quiet["p99_ms"]
        measured[kind] = {"quiet": quiet, "flooded": flooded, "p99_ratio": ratio, "stored_per_s": stored / seconds}
    return measured


async def _make_with_limits(cluster: Cluster, pool: str) -> None:
    bus = await connect_nats(cluster.server.url, name="benchmark", limits=StreamLimits())
    await bus.ensure_pool(pool)
    await bus.close()


async def _num_stored(cluster: Cluster, pool: str) -> int:
    """Commands of all tenants so far."""
    information = await cluster.bus._connection.api(f"STREAM.INFO.{submit_stream(pool)}")
    return information["state"]["last_seq"]


def _percentiles(waits_s: list[float]) -> dict[str, float]:
    return {f"p{percentile}_ms": 1e3 * float(np.percentile(waits_s, percentile)) for percentile in (50, 99)}


# --- the other tenant -----------------------------------------------------------------------------------


@contextmanager
def _flood(url: str, pool: str, kind: str) -> Iterator[None]:
    """Flood the pool from a process of its own."""
    environment = os.environ | {"FLOOD_URL": url, "FLOOD_POOL": pool, "FLOOD_KIND": kind}
    flood = subprocess.Popen([sys.executable, "-m", "benchmarks.pipeline.commands"], env=environment)
    try:
        yield
    finally:
        flood.kill()
        flood.wait()


async def _publish_without_end(url: str, pool: str, command: Callable[[str], Command]) -> None:
    bus = await connect_nats(url, name="flood")
    subject, numbers = subjects.submit("flood", pool), itertools.count()

    async def publisher() -> None:
        while True:
            job_id = f"flood-{next(numbers)}"
            data = codec.encode(command(job_id), id=job_id, recorded_at_s=CLOCK.now_s())
            try:
                await bus.append(subject, data, message_id=job_id)
            except StorageFull:
                await asyncio.sleep(WAIT_WHEN_FULL_S)
            except Retry:
                continue

    await asyncio.gather(*(publisher() for _ in range(PUBLISHERS)))


async def _measure() -> dict[str, Any]:
    async with running_cluster() as cluster:
        return await measure_commands(cluster, seconds=15.0)


if __name__ == "__main__":
    configure_logs(level="error")
    if "FLOOD_URL" in os.environ:
        with contextlib.suppress(KeyboardInterrupt):
            kind = FLOODS[os.environ["FLOOD_KIND"]]
            asyncio.run(_publish_without_end(os.environ["FLOOD_URL"], os.environ["FLOOD_POOL"], kind))
    else:
        print(json.dumps(asyncio.run(_measure()), indent=2))
