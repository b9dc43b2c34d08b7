"""Two executors of one machine with different shares of a core: idle slots of the slower type join a job."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.engine.sensitive import digest
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState
from testbed.real_pool import POOL, RunningPool, running_pool
from tests.support.executor_process import executor_process

CONFIG = PoolConfig(stop_free=True, resize_cost_s_by_num_gpus={1: 0.2})
FAST, SLOW = "cpu-0.4", "cpu-0.15"
LAST = 100  # iterations


def spec(max_iterations: int, **changes: object) -> JobSpec:
    return JobSpec(
        training_function="testbed.user_code.training_functions:Waiting",
        model_name="waiting",
        global_batch_size=32,
        max_iterations=max_iterations,
        job_class=JobClass.BEST_EFFORT,
        **changes,  # pyright: ignore[reportArgumentType]
    )


async def admitted(pool: RunningPool, job_id: str, spec: JobSpec) -> None:
    assert isinstance(await pool.client.submit(spec, job_id=job_id), JobAdmitted)


async def until_on(pool: RunningPool, *nodes: str, after: int = 0) -> Job:
    """The job once its workers are on these nodes, in rank order, and have reached a later iteration."""

    def trains_there(state: PoolState) -> bool:
        job = state.live_jobs["mixed"]
        return job.training and tuple(gpu.node_id for gpu in job.gpus) == nodes and job.iteration > after

    return (await pool.when(trains_there, f"it trains on {nodes} after iteration {after}")).live_jobs["mixed"]


def digest_of(data_dir: Path, job_id: str) -> str:
    """Of the job's final state."""
    state = CheckpointStore(data_dir / "checkpoints" / job_id, generation=1000).newest()
    assert state is not None
    assert state["iteration"] == LAST
    return digest(state)


@pytest.mark.nightly("test_move_between_types.py has a pool of two types, training/test_two_kinds.py the workers")
async def test_idle_slots_of_another_type_join_a_job_and_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ends with the bits of one undisturbed worker."""
    async with running_pool(tmp_path, num_nodes=0, replicas={}, config=CONFIG) as pool:
        with ExitStack() as stack:
            monkeypatch.setenv("VIRTUAL_NODE_S", "0.025")
            stack.enter_context(executor_process(pool.url, POOL, pool.data_dir, "fast", slots=1, cpu_share="0.4"))
            await pool.when(lambda state: state.num_gpus == 1, "the fast node joined, which is of the first type")
            monkeypatch.setenv("VIRTUAL_NODE_S", "0.065")
            stack.enter_context(executor_process(pool.url, POOL, pool.data_dir, "slow", slots=2, cpu_share="0.15"))
            await pool.when(lambda state: state.num_gpus == 3, "the slow node joined")
            await admitted(pool, "mixed", spec(LAST))
            job = await until_on(pool, "fast", "slow", "slow")
            fast, *slow = job.virtual_nodes_by_rank
            assert fast + sum(slow) == 16
            assert fast > max(slow), "the allocator knows the speeds"
            await until_on(pool, "fast", "slow", "slow", after=job.iteration)
            await admitted(pool, "slow", spec(15, gpu_type=SLOW, min_gpus=2))
            await until_on(pool, "fast")
            await pool.ended(["slow"])
            await until_on(pool, "fast", "slow", "slow")
            await pool.ended(["mixed"])
            await admitted(pool, "alone", spec(LAST, gpu_type=FAST))
            state = await pool.ended(["alone"])
        await pool.ledger()
    ended = state.ended_jobs.values()
    assert [(job.phase, job.restarts) for job in ended] == [(Phase.FINISHED, 0)] * 3
    assert digest_of(pool.data_dir, "mixed") == digest_of(pool.data_dir, "alone")
