"""`elasticflow.train` on a real pool: the bits of an ordinary run, whatever happens to runners and manager."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

import elasticflow
from benchmarks.engine.sensitive import digest
from elasticflow.client import training_load
from elasticflow.client.training_load import TrainingProgress
from elasticflow.errors import LoadNotOpened, ManagerEnded, TrainingRefused
from elasticflow.sdk.submission import submission_of
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.state.load import LoadPhase
from elasticflow.shared.state.pool import PoolState
from testbed.real_pool import POOL, RunningPool, children, eventually, job
from testbed.user_code.training_functions import ChangesBuffersLateOnce, NamesTheDefault, Points, Sparse, Stateful
from tests.support.task_runners import USER_CODE

pytestmark = pytest.mark.asyncio(loop_scope="session")

ITERATIONS = 40


@pytest.fixture(scope="module")
def pool(session_pool: RunningPool) -> RunningPool:
    return session_pool


def stateful(job_class: type[Stateful] = Stateful, **hyperparameters: Any) -> Stateful:
    """Without a number of virtual nodes in its code, unless job_class has one."""
    hyperparameters = {"global_batch_size": 21} | hyperparameters
    return job_class().set_hyperparameter(**hyperparameters).term_condition(max_iterations=ITERATIONS)


def digest_in(folder: Path) -> str:
    state = CheckpointStore(folder, generation=1000).newest()
    assert state is not None
    return digest(state)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def expected(pool: RunningPool) -> str:
    """Digest of the final state of an ordinary run with the virtual nodes that tasks have: the pool measures others."""
    ready = submission_of(stateful(NamesTheDefault).set_job_class("best_effort"))
    await pool.client.post(ready.spec, job_id="ordinary", code=ready.code)
    state = await pool.ended(["ordinary"])
    assert state.ended_jobs["ordinary"].iteration == ITERATIONS
    return digest_in(pool.data_dir / "checkpoints" / "ordinary")


class Run:
    """One call of `train` in another thread, and what it has reported."""

    def __init__(self, pool: RunningPool, job: Any, folder: Path, **options: Any) -> None:
        self.progress: list[TrainingProgress] = []
        self._settings = {"nats_url": pool.url, "pool": POOL, "tenant": "lab"}
        options = elasticflow.TrainingOptions(**{"task_s": 0.5, "overhead_s": 0.0} | options)
        self.result: asyncio.Task[TrainingProgress] = asyncio.create_task(
            asyncio.to_thread(self._train, job, folder, options)
        )

    def _train(self, job: Any, folder: Path, options: Any) -> TrainingProgress:
        return elasticflow.train(job, folder, options=options, on_progress=self.progress.append, **self._settings)

    async def until(self, holds: Callable[[Any], bool], what: str) -> None:
        await eventually(lambda: any(map(holds, self.progress)) or self.result.done(), what)
        assert not self.result.done(), f"it ended before {what}: {self.result}"


@pytest.mark.nightly("training/test_training_tasks.py ends runners in a task; test_padding_loads.py kills them")
async def test_runners_that_are_preempted_or_killed_do_not_change_the_bits(
    pool: RunningPool, expected: str, tmp_path: Path
) -> None:
    before, slow_down = (await pool.client.state()).loads, tmp_path / "slow"
    slow_down.touch()
    run = Run(pool, stateful(slow_down=str(slow_down)), tmp_path / "run")
    await run.until(lambda progress: progress.iteration > 3, "it trains")
    await pool.acknowledged(job(min_gpus=2, max_iterations=10), "preempts")
    await pool.ended(["preempts"])
    await eventually(pool.workers, "a runner is back")
    for runner in pool.workers():
        with contextlib.suppress(psutil.NoSuchProcess):
            runner.kill()
    assert not run.result.done()
    slow_down.unlink()
    assert (await run.result).iteration == ITERATIONS
    assert digest_in(tmp_path / "run") == expected
    await pool.when(
        lambda state: (
            {load.phase for load_id, load in state.loads.items() if load_id not in before} == {LoadPhase.FINISHED}
        ),
        "the load has finished",
    )


@pytest.mark.nightly("training/test_training_tasks.py has duplicates")
async def test_a_duplicate_that_is_left_at_the_end_fails_nothing(
    pool: RunningPool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_a_late_duplicate(training: Any) -> Iterator[Any]:
        task = None
        for task in inputs(training):
            yield task
        yield task

    inputs = training_load._Training._inputs
    monkeypatch.setattr(training_load._Training, "_inputs", with_a_late_duplicate)
    assert (await Run(pool, stateful(), tmp_path).result).iteration == ITERATIONS
    assert digest_in(tmp_path) == expected


@pytest.mark.nightly("training/test_training_tasks.py continues from checkpoints")
async def test_a_killed_manager_continues_from_its_checkpoint(pool: RunningPool, expected: str, tmp_path: Path) -> None:
    slow_down = tmp_path / "slow"
    slow_down.touch()
    run = Run(pool, stateful(slow_down=str(slow_down)), tmp_path, checkpoint_every_s=0.01)
    await run.until(lambda progress: progress.checkpoint_iteration > 3, "a checkpoint")
    manager_of_this_process().kill()
    with pytest.raises(ManagerEnded):
        await run.result
    again = Run(pool, stateful(), tmp_path)
    assert (await again.result).iteration == ITERATIONS
    assert again.progress[0].iteration > 3
    assert digest_in(tmp_path) == expected


def manager_of_this_process() -> psutil.Process:
    """It has the title of a worker, whose code it runs; workers of the pool are no children of this process."""
    commands = {child: " ".join(child.cmdline()) for child in children(psutil.Process().pid)}
    (manager,) = [child for child, command in commands.items() if command.startswith("eflow worker of Stateful-")]
    return manager


@pytest.mark.parametrize(
    ("job_class", "says"),
    [
        (Sparse, "the model has sparse gradients"),  # found by the manager
        (ChangesBuffersLateOnce, "changes the model's buffers after backward()"),  # found by a runner
    ],
)
async def test_a_job_that_no_task_can_compute_is_refused(
    pool: RunningPool, tmp_path: Path, job_class: type[Points], says: str
) -> None:
    refused = job_class().set_hyperparameter(global_batch_size=16).term_condition(max_iterations=3)
    with pytest.raises(TrainingRefused, match=re.escape(says)):
        await Run(pool, refused, tmp_path).result


async def test_a_load_that_does_not_pay_is_rejected(pool: RunningPool, tmp_path: Path) -> None:
    for _ in range(2):  # the second time it finds the name of a load that was never opened
        with pytest.raises(LoadNotOpened, match="it does not pay"):
            await Run(pool, stateful(), tmp_path, task_s=0.001, overhead_s=60.0).result


async def command(pool: RunningPool, folder: Path, *more: str) -> asyncio.subprocess.Process:
    """`eflow train` in a process of its own. What a killed one leaves of its unpacked code is beside its folder."""
    target = f"{USER_CODE}/training_functions.py:Stateful"
    options = ["--batch", "21", "--iterations", f"{ITERATIONS}", "--json", *more]
    where = ["--nats-url", pool.url, "--pool", POOL, "--tenant", "lab", "--checkpoint", str(folder)]
    arguments = ("-m", "elasticflow", "train", target, *options, *where)
    environment = {**os.environ, "TMPDIR": str(folder.parent)}
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, env=environment
    )


@pytest.mark.nightly("training/test_training_tasks.py continues from checkpoints")
async def test_a_command_that_is_interrupted_or_killed_continues(
    pool: RunningPool, expected: str, tmp_path: Path
) -> None:
    slow_down, folder = tmp_path / "slow", tmp_path / "run"
    slow_down.touch()
    slowly = ("--checkpoint-every", "0.1s", "--set", f"slow_down={slow_down}")
    first = await command(pool, folder, *slowly)
    await eventually(lambda: list(folder.glob("*.ckpt")), "a checkpoint")
    first.send_signal(signal.SIGINT)
    assert await first.wait() == 130
    await pool.when(lambda state: not loads_in(state, LoadPhase.OPEN), "its load is cancelled")  # it awaits no reply
    assert loads_in(await pool.client.state(), LoadPhase.CANCELLED)
    before = iteration_in(folder)
    second = await command(pool, folder, *slowly)
    await eventually(lambda: iteration_in(folder) > before, "another checkpoint")
    assert loads_in(await pool.client.state(), LoadPhase.OPEN)
    second.kill()
    await second.wait()
    third = await command(pool, folder)
    output, _ = await third.communicate()
    assert json.loads(output)["iteration"] == ITERATIONS
    assert digest_in(folder) == expected
    assert not loads_in(await pool.client.state(), LoadPhase.OPEN)


def loads_in(state: PoolState, phase: LoadPhase) -> list[str]:
    return [load_id for load_id, load in state.loads.items() if load.phase is phase]


def iteration_in(folder: Path) -> int:
    newest = CheckpointStore(folder, generation=1000).newest()
    return -1 if newest is None else newest["iteration"]
