"""`elasticflow.train` on a real pool: the bits of an ordinary run, whatever happens to runners and manager."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

import elasticflow
from benchmarks.engine.sensitive import digest
from elasticflow.errors import LoadNotOpened, ManagerEnded, TrainingRefused
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.worker_protocol.from_worker import CheckpointWritten, Finished, Progressed
from elasticflow.shared.state.load import LoadPhase
from tests.support.real_pool import POOL, RunningPool, children, eventually, job, running_pool
from tests.support.user_code.training_functions import Sparse, Stateful

pytestmark = pytest.mark.asyncio(loop_scope="module")

ITERATIONS = 30


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningPool]:
    async with running_pool(tmp_path_factory.mktemp("training"), num_nodes=1, replicas={}) as pool:
        yield pool


def stateful() -> Stateful:
    return Stateful().set_hyperparameter(global_batch_size=21).term_condition(max_iterations=ITERATIONS)


def digest_in(folder: Path) -> str:
    state = CheckpointStore(folder, generation=1000).newest()
    assert state is not None
    return digest(state)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(pool: RunningPool) -> str:
    """Digest of the final state of an ordinary run."""
    ready = elasticflow.sdk.submission.submission_of(stateful().set_job_class("best_effort"))
    await pool.client.post(ready.spec, job_id="ordinary", code=ready.code)
    state = await pool.ended(["ordinary"])
    assert state.ended_jobs["ordinary"].iteration == ITERATIONS
    return digest_in(pool.data_dir / "checkpoints" / "ordinary")


class Run:
    """One call of `train` in another thread, and what it has reported."""

    def __init__(self, pool: RunningPool, job: Any, folder: Path, **options: Any) -> None:
        self.progress: list[Any] = []
        self._settings = {"nats_url": pool.url, "pool": POOL, "tenant": "lab"}
        options = elasticflow.TrainingOptions(**{"task_s": 0.5, "overhead_s": 0.0} | options)
        self.result: asyncio.Task[Finished] = asyncio.create_task(asyncio.to_thread(self._train, job, folder, options))

    def _train(self, job: Any, folder: Path, options: Any) -> Finished:
        return elasticflow.train(job, folder, options=options, on_progress=self.progress.append, **self._settings)

    async def until(self, holds: Callable[[Any], bool], what: str) -> None:
        await eventually(lambda: any(map(holds, self.progress)) or self.result.done(), what)
        assert not self.result.done(), f"it ended before {what}: {self.result}"


async def test_runners_that_are_preempted_or_killed_do_not_change_the_bits(
    pool: RunningPool, expected: str, tmp_path: Path
) -> None:
    run = Run(pool, stateful(), tmp_path)
    await run.until(lambda message: isinstance(message, Progressed) and message.iteration > 3, "it trains")
    await pool.acknowledged(job(min_gpus=2, max_iterations=10), "preempts")
    await pool.ended(["preempts"])
    for runner in pool.workers():
        runner.kill()
    assert (await run.result).iteration == ITERATIONS
    assert digest_in(tmp_path) == expected
    state = await pool.client.state()
    assert {load.phase for load in state.loads.values()} == {LoadPhase.FINISHED}


async def test_a_killed_manager_continues_from_its_checkpoint(pool: RunningPool, expected: str, tmp_path: Path) -> None:
    run = Run(pool, stateful(), tmp_path, checkpoint_every_s=0.01)
    await run.until(lambda message: isinstance(message, CheckpointWritten) and message.iteration > 3, "a checkpoint")
    manager_of_this_process().kill()
    with pytest.raises(ManagerEnded):
        await run.result
    again = Run(pool, stateful(), tmp_path)
    assert (await again.result).iteration == ITERATIONS
    assert again.progress[0].iteration > 3
    assert digest_in(tmp_path) == expected


def manager_of_this_process() -> psutil.Process:
    (manager,) = [child for child in children(psutil.Process().pid) if "training_tasks" in " ".join(child.cmdline())]
    return manager


async def test_a_job_that_no_task_can_compute_is_refused(pool: RunningPool, tmp_path: Path) -> None:
    with pytest.raises(TrainingRefused, match="the model has sparse gradients"):
        await Run(
            pool, Sparse().set_hyperparameter(global_batch_size=16).term_condition(max_iterations=3), tmp_path
        ).result


async def test_a_load_that_does_not_pay_is_rejected(pool: RunningPool, tmp_path: Path) -> None:
    with pytest.raises(LoadNotOpened, match="it does not pay"):
        await Run(pool, stateful(), tmp_path, task_s=0.001, overhead_s=60.0).result
