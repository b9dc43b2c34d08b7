"""Executors in their own processes, with real workers: two nodes, a resize, a clean shutdown."""

import asyncio
import hashlib
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from elasticflow.client.command_requests import Package
from elasticflow.sdk.packaging import package
from elasticflow.services.executor.processes.fork_server_client import marked_processes
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from testbed.hostile_archives import HOSTILE_ARCHIVES, TOO_LARGE
from testbed.planned_ledger import POOL, Ledger
from tests.support.executor_process import executor_process

ROOT = Path(__file__).parents[2]
TRAINING_FUNCTIONS = ROOT / "testbed" / "user_code" / "training_functions.py"


@pytest.fixture
async def bus(nats_server: EmbeddedServer) -> AsyncIterator[Bus]:
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    yield bus
    await bus.close()


def executor(
    nats_server: EmbeddedServer, data_dir: Path, node_id: str, stderr: int | None = None, cpu_share: str = "1"
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return executor_process(nats_server.url, POOL, data_dir, node_id, cpu_share=cpu_share, stderr=stderr)


def points() -> Package:
    return package(f"{TRAINING_FUNCTIONS}:Points")


def slow_steps(code: Package, *, max_iterations: int) -> dict[str, Any]:
    """The specification of a job with this code, in steps of some milliseconds."""
    return {
        "training_function": code.training_function,
        "code_digest": code.code_digest,
        "global_batch_size": 16,
        "max_iterations": max_iterations,
        "hyperparameters": {"step_s": 0.02},
    }


def exit_code(process: subprocess.Popen[bytes]) -> int:
    return process.wait(timeout=60)


async def until_moving(bus: Bus, job_id: str) -> None:
    """Return when a heartbeat reports a finished iteration: from then on a checkpoint has content."""
    heartbeats = await bus.subscribe(subjects.every_node(POOL))
    async with asyncio.timeout(60):
        async for message in heartbeats:
            reported = codec.decode(message.data).message
            assert isinstance(reported, events.NodeReported)
            if any(report.job_id == job_id and report.iteration > 0 for report in reported.workers):
                break
    await heartbeats.close()


async def test_a_job_trains_on_two_nodes_shrinks_and_finishes(
    nats_server: EmbeddedServer, bus: Bus, tmp_path: Path
) -> None:
    code = points()
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", code.code_digest), code.archive)
    ledger, slow_down = Ledger(bus), tmp_path / "slow_down"
    slow_down.touch()  # the job does not end before it has shrunk
    job = slow_steps(code, max_iterations=40) | {"hyperparameters": {"slow_down": str(slow_down)}}
    with (
        executor(nats_server, tmp_path, "node-0") as first,
        executor(nats_server, tmp_path, "node-1") as second,
    ):
        await ledger.until_received(events.NodeJoined, count=2)
        await ledger.place("a", 1, "node-0:0", "node-1:1", **job)
        started = await ledger.until_received(events.GenerationStarted)
        assert (started.num_gpus, started.iteration) == (2, 0)
        await until_moving(bus, "a")
        await ledger.place("a", 2, "node-1:0")
        resumed = await ledger.until_received(events.GenerationStarted, count=2)
        assert resumed.iteration > 0
        slow_down.unlink()
        finished = await ledger.until_received(events.JobFinished)
        assert (finished.iteration, finished.condition) == (40, "max_iterations")
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
        left = await ledger.until_received(events.NodeLost, count=2)
        assert left.reason == "left"
        assert [await asyncio.to_thread(exit_code, process) for process in (first, second)] == [0, 0]
    assert not [message for message in ledger.received if isinstance(message, events.WorkerCrashed)]
    assert not marked_processes({"EF_WORKER": "1", "EF_DATA_DIR": str(tmp_path)})


async def test_after_an_executor_was_killed_its_job_continues_from_the_checkpoint(
    nats_server: EmbeddedServer, bus: Bus, tmp_path: Path
) -> None:
    code = points()
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", code.code_digest), code.archive)
    ledger = Ledger(bus)
    job = slow_steps(code, max_iterations=10**6)
    with executor(nats_server, tmp_path, "node-0") as process:
        await ledger.until_received(events.NodeJoined)
        await ledger.place("a", 1, "node-0:0", **job)
        await ledger.until_received(events.GenerationStarted)
        await ledger.place("a", 2, "node-0:0", "node-0:1")
        resumed = await ledger.until_received(events.GenerationStarted, count=2)
        process.kill()
    with executor(nats_server, tmp_path, "node-0") as process:
        await ledger.until_received(events.NodeJoined, count=2)
        assert ledger.state.live_jobs["a"].broken
        assert (
            len(marked_processes({"EF_WORKER": "1", "EF_DATA_DIR": str(tmp_path)})) == 2
        )  # the new fork server and its keeper
        await ledger.place("a", 3, "node-0:1")
        again = await ledger.until_received(events.GenerationStarted, count=3)
        assert again.iteration >= resumed.iteration > 0
        process.send_signal(signal.SIGTERM)
        await ledger.until_received(events.NodeLost)
        assert await asyncio.to_thread(exit_code, process) == 0


async def test_hostile_code_fails_its_jobs_and_a_neighbour_trains_on(
    nats_server: EmbeddedServer, bus: Bus, tmp_path: Path
) -> None:
    code = points()
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", code.code_digest), code.archive)
    ledger = Ledger(bus)
    with executor(nats_server, tmp_path, "node-0") as process:
        await ledger.until_received(events.NodeJoined)
        await ledger.place("neighbour", 1, "node-0:0", **slow_steps(code, max_iterations=10**6))
        await ledger.until_received(events.GenerationStarted)
        hostile = [*HOSTILE_ARCHIVES.values(), TOO_LARGE]
        for number, data in enumerate(hostile, start=1):
            digest = hashlib.sha256(data).hexdigest()
            await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", digest), data)
            await ledger.place(f"hostile-{number}", 1, "node-0:1", code_digest=digest)
            failed = await ledger.until_received(events.JobFailed, count=number)
            assert failed.job_id == f"hostile-{number}"
            await ledger.until_received(events.WorkersStopped, count=number)
        assert process.poll() is None
        await until_moving(bus, "neighbour")
        assert ledger.state.live_jobs["neighbour"].training
        assert not [message for message in ledger.received if isinstance(message, events.WorkerCrashed)]


async def test_two_machines_with_one_node_id_exclude_each_other(
    nats_server: EmbeddedServer, bus: Bus, tmp_path: Path
) -> None:
    ledger = Ledger(bus)
    here, there = tmp_path / "here", tmp_path / "there"
    with executor(nats_server, here, "node-0") as first:
        await ledger.until_received(events.NodeJoined)
        with executor(nats_server, there, "node-0", subprocess.PIPE) as second:
            _, errors = await asyncio.to_thread(second.communicate, timeout=60)
            assert second.returncode == 2
            assert b"EF_NODE_ID='node-0': another executor of this name is alive" in errors
        assert first.poll() is None
        first.kill()
    with executor(nats_server, there, "node-0") as third:
        await ledger.until_received(events.NodeJoined, count=2)
        third.kill()
    with executor(nats_server, there, "node-0"):
        await ledger.until_received(events.NodeJoined, count=3)
    assert len({event.incarnation for event in ledger.received}) == 3
