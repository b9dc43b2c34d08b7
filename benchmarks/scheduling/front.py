"""`python -m benchmarks.scheduling.front`: how long a front of one, two and four real pools takes, on this machine.

Each pool has a NATS server and services of its own, and nodes that only the ledger knows: jobs are admitted and placed,
but nothing trains. All share the cores of one machine: on machines of their own, more pools would cost less time.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import machine
from benchmarks.scheduling.report import Sheet, show
from benchmarks.timing import spread_ms
from elasticflow.client.pool_front import PoolFront, named_pools
from elasticflow.shared.messages.events import JobAdmitted
from testbed.real_pool import CONFIG, POOL, job, running_pool

COUNTS = (1, 2, 4)
GPUS_PER_POOL = 64
SPEC = job(deadline_in_s=36_000.0)
UNWATCHED = replace(CONFIG, heartbeat_timeout_s=3_600.0, stall_timeout_s=36_000.0)  # nothing answers for the nodes


async def measure(counts: tuple[int, ...], times: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each number of pools."""
    async with AsyncExitStack() as stack:
        pools = [
            await stack.enter_async_context(
                running_pool(folder / f"{number}", num_nodes=0, replicas={}, config=UNWATCHED)
            )
            for number in range(max(counts))
        ]
        for pool in pools:
            for number in range(GPUS_PER_POOL // 8):
                await pool.node_joins(f"node-{number}", 8)
            await pool.when(lambda state: state.num_gpus == GPUS_PER_POOL, "its nodes have joined")
        named = named_pools([f"{POOL}={pool.url}" for pool in pools])
        return [await _measured(PoolFront(pools=named[:count], tenant="lab"), times) for count in counts]


async def _measured(front: PoolFront, times: int) -> dict[str, Any]:
    """Quotes, submissions of new jobs, submissions of named jobs, and the same once more."""
    num_pools, admitted = len(front.pools), list[str]()

    async def submit(job_id: str = "") -> None:
        chosen = await front.submit(SPEC, job_id=job_id)
        assert isinstance(chosen.decision, JobAdmitted), chosen
        admitted.append(chosen.pool.name)

    names = [f"of-{num_pools}-{number}" for number in range(times)]
    wall_ms = {
        "quotes": await _spread([lambda: front.quotes(SPEC)] * times),
        "submission": await _spread([submit] * times),
        "named": await _spread([lambda name=name: submit(name) for name in names]),
        "repeated": await _spread([lambda name=name: submit(name) for name in names]),
    }
    return {"pools": num_pools, "times": times, "wall_ms": wall_ms, "pools_used": len(set(admitted))}


async def _spread(calls: list[Callable[[], Awaitable[object]]]) -> dict[str, float]:
    took_s = list[float]()
    for call in calls:
        began_s = time.perf_counter()
        await call()
        took_s.append(time.perf_counter() - began_s)
    return spread_ms(took_s)


def sheet_of(rows: list[dict[str, Any]]) -> Sheet:
    kinds = tuple(rows[0]["wall_ms"])
    return Sheet(
        title=f"A front of real pools of {GPUS_PER_POOL} GPUs, wall time in ms, p50 / p99, {machine()}",
        columns=("pools", "times", *kinds, "pools that got jobs"),
        rows=tuple(
            (
                f"{row['pools']}",
                f"{row['times']}",
                *(f"{row['wall_ms'][kind]['p50']:.0f} / {row['wall_ms'][kind]['p99']:.0f}" for kind in kinds),
                f"{row['pools_used']}",
            )
            for row in rows
        ),
    )


def main(
    times: Annotated[int, typer.Option(min=2, help="Calls of each kind, at each number of pools.")] = 50,
    most_pools: Annotated[int, typer.Option(min=1, max=4, help="The most pools: 1, 2 or 4.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON object.")] = False,
) -> None:
    """Measure quotes and submissions through a front of 1, 2 and 4 pools.

    \b
    Examples:
      python -m benchmarks.scheduling.front
      python -m benchmarks.scheduling.front --times 5 --most-pools 2 --json
    """
    counts = tuple(count for count in COUNTS if count <= most_pools)
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(counts, times, Path(folder)))
    show([sheet_of(rows)], {"machine": machine(), "gpus_per_pool": GPUS_PER_POOL, "runs": rows}, as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
