"""A job moves to another GPU type in a real pool: the workers there take its state over from those that train."""

import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.engine.sensitive import digest
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.events import CheckpointWritten, GenerationStarted, JobAdmitted, JobAmended
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Phase
from testbed.real_pool import POOL, RunningPool, running_pool
from tests.support.executor_process import executor_process

LAST = 40  # iterations
SLOW, FAST = "cpu-0.5", "cpu-0.6"
CONFIG = PoolConfig(  # by these curves, which no machine has, only one type keeps a deadline that is near
    stop_free=True, resize_cost_s=1.0, curves={"points/b32": {1: 0.2}, f"points/b32@{FAST}": {1: 20.0}}
)
SPEC = JobSpec(
    training_function="testbed.user_code.training_functions:Points",
    model_name="points",
    global_batch_size=32,
    hyperparameters={"step_s": 0.04},  # of each of eight virtual nodes
    max_iterations=LAST,
    job_class=JobClass.SLO,
    deadline_in_s=3600.0,
)


@dataclass(frozen=True, slots=True)
class Nodes:
    """Close `slow` to kill the node on which the job trains. fast: the executor of the other."""

    slow: ExitStack
    fast: subprocess.Popen[bytes]


@asynccontextmanager
async def training_on_slow(tmp_path: Path) -> AsyncIterator[tuple[RunningPool, Nodes]]:
    """A promised job trains on the slow type, and has a checkpoint."""
    async with running_pool(tmp_path, num_nodes=0, replicas={}, config=CONFIG) as pool:
        with ExitStack() as stack:
            slow = stack.enter_context(ExitStack())
            slow.enter_context(executor_process(pool.url, POOL, pool.data_dir, "slow", slots=1, cpu_share="0.5"))
            await pool.when(lambda state: state.num_gpus == 1, "the slow node joined, which is of the first type")
            fast = stack.enter_context(
                executor_process(pool.url, POOL, pool.data_dir, "fast", slots=1, cpu_share="0.6")
            )
            await pool.when(lambda state: state.num_gpus == 2, "the fast node joined")
            assert isinstance(await pool.client.submit(SPEC, job_id="a"), JobAdmitted)
            await pool.when(lambda state: state.live_jobs["a"].iteration > 2, "the job trains")
            assert isinstance(await pool.client.checkpoint("a"), CheckpointWritten)
            yield pool, Nodes(slow, fast)


async def moved(pool: RunningPool) -> None:
    amended = await pool.client.amend("a", within=12.0)
    assert isinstance(amended, JobAmended), amended
    assert amended.gpu_type == FAST


async def starts_until_the_end(pool: RunningPool) -> list[GenerationStarted]:
    """Of the job. It ends with the bits of an undisturbed one."""
    await pool.ended(["a"])
    assert isinstance(await pool.client.submit(SPEC, job_id="alone"), JobAdmitted)
    state = await pool.ended(["alone"])
    assert [job.phase for job in state.ended_jobs.values()] == [Phase.FINISHED] * 2
    assert digest_of(pool, "a") == digest_of(pool, "alone")
    messages = (entry.message for entry in await pool.ledger())
    return [message for message in messages if isinstance(message, GenerationStarted) and message.job_id == "a"]


def digest_of(pool: RunningPool, job_id: str) -> str:
    """Of the job's final state."""
    state = CheckpointStore(pool.data_dir / "checkpoints" / job_id, generation=1000).newest()
    assert state is not None
    assert state["iteration"] == LAST
    return digest(state)


async def test_the_workers_of_the_other_type_take_the_state_over_and_no_step_is_lost(tmp_path: Path) -> None:
    async with training_on_slow(tmp_path) as (pool, _):
        state = await pool.when(lambda state: state.live_jobs["a"].checkpoint_iteration > 0, "it has a checkpoint")
        await moved(pool)
        _, switched = await starts_until_the_end(pool)
    assert switched.resize is not None, "a switch, not a start from the checkpoint"
    assert switched.resize.bytes_moved > 0
    before = state.live_jobs["a"].checkpoint_iteration
    assert switched.iteration > before, "it trained while the other worker started"


@pytest.mark.nightly("training/test_stop_free.py loses workers in a switch")
async def test_if_the_worker_with_the_state_is_lost_in_the_move_the_job_starts_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    async with training_on_slow(tmp_path) as (pool, nodes):
        nodes.fast.send_signal(signal.SIGSTOP)  # so that the move is not over before the loss
        await moved(pool)
        await pool.when(lambda state: state.live_jobs["a"].previous_generation is not None, "the job is to switch")
        nodes.slow.close()
        nodes.fast.send_signal(signal.SIGCONT)
        _, restarted = await starts_until_the_end(pool)
    assert (restarted.resize, restarted.num_gpus) == (None, 1)
    assert restarted.iteration > 0, "that of the checkpoint"
