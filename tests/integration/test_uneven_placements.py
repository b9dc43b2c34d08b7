"""Placements that name unequal numbers of virtual nodes, on executors whose CPU slots differ in speed."""

from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from benchmarks.engine.sensitive import digest
from elasticflow.sdk.packaging import package
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from testbed.histories import NOW_S
from testbed.planned_ledger import POOL, Ledger
from tests.integration.test_executor_process import TRAINING_FUNCTIONS, executor, until_moving

LAST = 60  # iterations
ON = ("node-0:0", "node-1:0")  # a whole core, and a quarter of one


@pytest.fixture
async def bus(nats_server: EmbeddedServer) -> AsyncIterator[Bus]:
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    yield bus
    await bus.close()


def digest_of(data_dir: Path, job_id: str) -> str:
    """Of the job's final state."""
    state = CheckpointStore(data_dir / "checkpoints" / job_id, generation=1000).newest()
    assert state is not None
    assert state["iteration"] == LAST
    return digest(state)


def kill_worker(pid: int) -> None:
    """The only one of this executor: a child of its fork server."""
    (worker,) = [worker for server in psutil.Process(pid).children() for worker in server.children()]
    worker.kill()


@pytest.mark.nightly("training/test_uneven_workers.py has the workers")
async def test_counts_change_without_a_stop_and_a_loss_divides_evenly(
    nats_server: EmbeddedServer, bus: Bus, tmp_path: Path
) -> None:
    """The job ends with the bits of one undisturbed worker."""
    code = package(f"{TRAINING_FUNCTIONS}:Stateful")
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", code.code_digest), code.archive)
    slow_down = tmp_path / "slow_down"
    slow_down.touch()
    spec = {
        "training_function": code.training_function,
        "code_digest": code.code_digest,
        "global_batch_size": 21,
        "max_iterations": LAST,
    }
    ledger = Ledger(bus)
    await ledger.plan(events.PoolConfigured(config=PoolConfig(stop_free=True), at_s=NOW_S))
    with (
        executor(nats_server, tmp_path, "node-0"),
        executor(nats_server, tmp_path, "node-1", cpu_share="0.25") as second,
    ):
        await ledger.until_received(events.NodeJoined, count=2)
        disturbed = spec | {"hyperparameters": {"slow_down": str(slow_down)}}
        await ledger.place("a", 1, *ON, virtual_nodes_by_rank=(6, 2), **disturbed)
        await ledger.until_received(events.GenerationStarted)
        await until_moving(bus, "a")
        await ledger.place("a", 2, *ON, virtual_nodes_by_rank=(7, 1))
        switched = await ledger.until_received(events.GenerationStarted, count=2)
        assert switched.iteration > 0
        assert switched.resize is not None, "no worker stopped"
        assert switched.resize.bytes_moved == 0
        kill_worker(second.pid)
        crashed = await ledger.until_received(events.WorkerCrashed)
        assert (crashed.generation, crashed.rank) == (2, 1)
        await ledger.place("a", 3, ON[0])
        survived = await ledger.until_received(events.GenerationStarted, count=3)
        assert (survived.num_gpus, survived.resize is not None) == (1, True)
        await ledger.place("a", 4, *ON, virtual_nodes_by_rank=(0, 8))
        joined = await ledger.until_received(events.GenerationStarted, count=4)
        assert joined.resize is not None
        assert joined.resize.bytes_moved > 0
        slow_down.unlink()
        await ledger.until_received(events.JobFinished)
        await ledger.place("b", 1, ON[0], **spec)
        await ledger.until_received(events.JobFinished, count=2)
    assert digest_of(tmp_path, "a") == digest_of(tmp_path, "b")


async def test_counts_that_do_not_fit_the_job_fail_it_with_one_sentence(
    nats_server: EmbeddedServer, bus: Bus, tmp_path: Path
) -> None:
    code = package(f"{TRAINING_FUNCTIONS}:Points")
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", code.code_digest), code.archive)
    ledger = Ledger(bus)
    with executor(nats_server, tmp_path, "node-0"):
        await ledger.until_received(events.NodeJoined)
        await ledger.place(
            "a",
            1,
            "node-0:0",
            "node-0:1",
            virtual_nodes_by_rank=(6, 3),
            training_function=code.training_function,
            code_digest=code.code_digest,
            global_batch_size=16,
        )
        failed = await ledger.until_received(events.JobFailed)
    assert failed.error == "9 virtual nodes were placed, but the job has 8: place each of them once"
