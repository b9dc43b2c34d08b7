"""Runs the jobs on CPU slots of a real pool, and keeps its ledger."""

import asyncio
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.simulator_fidelity.workload import CLUSTER, CONFIG, NUM_NODES, Arrival
from elasticflow.client.ledger import write_ledger
from elasticflow.shared.messages.export import read_export
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.simulator.replay.recorded_ledger import read_entries
from testbed.real_pool import RunningPool, running_pool

_WARM_UP_S = 10.0  # the nodes make warm workers, as in a pool that runs for long


def run_unless_kept(jobs: tuple[Arrival, ...], ledger: Path, *, resume: bool, config: PoolConfig = CONFIG) -> None:
    """resume: a ledger that is there is kept."""
    if not resume or not ledger.exists():
        Console(stderr=True).print(f"running {ledger.stem}")
        asyncio.run(record(jobs, ledger, config))


async def record(jobs: tuple[Arrival, ...], ledger: Path, config: PoolConfig = CONFIG) -> None:
    """Run the jobs until all have ended. The ledger appears whole, or not at all."""
    with tempfile.TemporaryDirectory(prefix="ef-fidelity-") as folder:
        async with running_pool(Path(folder), num_nodes=NUM_NODES, replicas={}, config=config) as pool:
            await pool.when(lambda state: state.num_gpus == CLUSTER.num_gpus, "all nodes have joined")
            await asyncio.sleep(_WARM_UP_S)
            async with asyncio.TaskGroup() as tasks:
                for job in jobs:
                    tasks.create_task(_run(pool, job))
            await write_ledger(pool.client, ledger)


async def _run(pool: RunningPool, job: Arrival) -> None:
    await asyncio.sleep(job.at_s)
    await pool.client.submit(job.spec(), job_id=job.job_id)
    await pool.client.wait(job.job_id)


def read_messages(ledger: Path) -> tuple[LedgerMessage, ...]:
    with ledger.open("rb") as opened:
        return tuple(entry.message for entry in read_entries(read_export(opened)))
