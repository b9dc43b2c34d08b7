"""A worker or a machine dies: the survivors continue from their step, and a replacement joins when it is ready."""

import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from elasticflow.shared.messages.events import GenerationStarted, NodeLost, WorkerCrashed
from elasticflow.shared.messages.job_spec import JobClass
from testbed.fault_evidence import assert_sound, iterations_trained
from testbed.real_pool import CONFIG, RunningPool, job, running_pool, slowed_down

ITERATIONS = 400
TWO_GPUS = replace(CONFIG, curves={"steps/b8": {1: 20.0, 2: 40.0}})
FOUR_GPUS = replace(CONFIG, curves={"steps/b8": {1: 20.0, 2: 40.0, 4: 80.0}}, heartbeat_timeout_s=3.0, max_restarts=0)


@pytest.mark.nightly("training/test_stop_free.py kills workers; the other test here takes a whole node")
async def test_a_killed_worker_costs_the_step_in_flight_and_no_restart(tmp_path: Path) -> None:
    slow_down = tmp_path / "slow_down"
    async with running_pool(tmp_path, num_nodes=2, replicas={}, config=TWO_GPUS) as pool:
        spec = slowed_down(job(JobClass.BEST_EFFORT, max_iterations=ITERATIONS), slow_down)
        await pool.acknowledged(spec, "survivor")
        state = await pool.when(
            lambda state: (
                (one := state.live_jobs.get("survivor")) is not None
                and len(one.gpus) == 2
                and one.training
                and one.iterations_per_s is not None
            ),
            "it trains on two GPUs",
        )
        generation = state.live_jobs["survivor"].generation
        processes = {process.pid: process for process in pool.workers()}
        processes[max(processes)].send_signal(signal.SIGKILL)
        await pool.when(
            lambda state: (
                (one := state.live_jobs["survivor"]).training and len(one.gpus) == 2 and one.generation > generation
            ),
            "its replacement trains",
        )
        slow_down.unlink()
        await pool.ended(["survivor"])
        entries = await pool.ledger()
    messages = [entry.message for entry in entries]
    (crash,) = [event for event in messages if isinstance(event, WorkerCrashed)]
    alone, together = [e for e in messages if isinstance(e, GenerationStarted) and e.generation > generation]
    assert crash.generation == generation
    assert (alone.num_gpus, together.num_gpus) == (1, 2)
    assert 0 < alone.iteration < together.iteration, "it trains while its replacement prepares"
    assert alone.resize is not None, "no worker restarted"
    assert alone.resize.bytes_moved == 0
    assert together.resize is not None
    assert together.resize.bytes_moved > 0
    assert iterations_trained(pool.data_dir, "survivor") == set(range(ITERATIONS))
    assert_sound(entries, pool.data_dir)


async def test_a_node_that_vanishes_without_a_word_costs_the_step_in_flight(tmp_path: Path) -> None:
    """No connection to it breaks: all that ran there is stopped, and killed only when no job depends on it."""
    slow_down = tmp_path / "slow_down"
    async with running_pool(tmp_path, num_nodes=2, replicas={}, config=FOUR_GPUS) as pool:
        spec = slowed_down(job(JobClass.BEST_EFFORT, max_iterations=ITERATIONS), slow_down)
        await pool.acknowledged(spec, "survivor")
        state = await pool.when(
            lambda state: (
                (one := state.live_jobs.get("survivor")) is not None
                and len(one.gpus) == 4
                and one.training
                and one.iterations_per_s is not None
            ),
            "it trains on all GPUs",
        )
        node_id = state.live_jobs["survivor"].gpus[0].node_id  # where rank 0 is, who keeps the checkpoints
        processes = all_of_node(pool, node_id)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        try:
            await pool.when(
                lambda state: (one := state.live_jobs["survivor"]).training and node_id not in one.nodes,
                "it trains on the GPUs that are left",
            )
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
        slow_down.unlink()
        await pool.ended(["survivor"])
        entries = await pool.ledger()
    messages = [entry.message for entry in entries]
    assert [event.reason for event in messages if isinstance(event, NodeLost)][:1] == ["silent"]
    starts = [event for event in messages if isinstance(event, GenerationStarted)]
    after = next(start for start in starts if start.num_gpus == 2 and start.iteration > 0)
    assert after.resize is not None, "no worker restarted"
    assert iterations_trained(pool.data_dir, "survivor") == set(range(ITERATIONS))
    assert_sound(entries, pool.data_dir)


def all_of_node(pool: RunningPool, node_id: str) -> list[psutil.Process]:
    """Its executor, its fork server, its workers: who starts others first."""
    name = next(name for name in pool.pids() if name.startswith("executor") and node_id in name)
    pid = pool.pid(name)
    assert pid is not None
    executor = psutil.Process(pid)
    return [executor, *executor.children(recursive=True)]
