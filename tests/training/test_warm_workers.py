"""Warm workers: each serves one job, is replaced, and none is left over."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from elasticflow.services.executor.processes.fork_server_client import marked_processes
from elasticflow.services.executor.processes.launcher import Launcher, WorkerEvent, WorkerHandle
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode, Finished
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_GPUS = 2
PATIENCE_S = 60.0


@dataclass
class Warm:
    """A launcher with a warm worker for each of two slots."""

    launcher: Launcher
    folder: Path
    events: list[tuple[WorkerHandle, WorkerEvent]] = field(default_factory=list)

    async def when(self, holds) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - processes do not signal their work
                await asyncio.sleep(0.01)

    async def all_ready(self) -> dict[int, int]:
        await self.when(lambda: len(self.launcher.warm_pool.ready) == NUM_GPUS)
        return self.launcher.warm_pool.ready

    async def launch(self, spec, job_id: str, *, gpu_index: int) -> WorkerHandle:
        return await self.launcher.launch(
            Assignment(
                job_id=job_id,
                plan=GenerationPlan(generation=1, world_size=1),
                rank=0,
                spec=spec,
                checkpoint_dir=str(self.folder / job_id),
                code_path=str(Path(__file__).parents[2] / "testbed" / "user_code"),
                gpu_index=gpu_index,
            )
        )

    async def run(self, spec, job_id: str, *, gpu_index: int) -> int:
        """Run a job with one worker to its end. The process that it had."""
        worker = await self.launch(spec, job_id, gpu_index=gpu_index)
        await self.when(lambda: worker.exited is not None)
        assert worker.exited is not None
        assert worker.exited.code == ExitCode.DONE
        assert any(handle is worker and isinstance(event, Finished) for handle, event in self.events)
        return worker.pid


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Warm]:
    folder = tmp_path_factory.mktemp("warm")
    events: list[tuple[WorkerHandle, WorkerEvent]] = []
    launcher = Launcher(
        data_dir=folder,
        node_id="warm",
        on_event=lambda worker, event: events.append((worker, event)),
        warm_workers=NUM_GPUS,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{Launcher.__module__}._PAUSE_S", 0.0)
        patch.setattr(f"{Launcher.__module__}._FIRST_FORK_RETRY_S", 0.0)
        await launcher.start()
        yield Warm(launcher, folder, events)
        await launcher.close()
    marks = {"EF_WORKER": "1", "EF_NODE_ID": "warm", "EF_DATA_DIR": str(folder.resolve())}
    assert marked_processes(marks) == []


async def test_a_job_receives_the_warm_worker_of_its_gpu_and_no_other_job_does(warm, spec_of):
    before = await warm.all_ready()
    assert await warm.run(spec_of("Points"), "first", gpu_index=1) == before[1]
    assert "training_finished" in warm.launcher.log_file("first", 1, 0).read_text()
    after = await warm.all_ready()
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert await warm.run(spec_of("Points"), "second", gpu_index=1) == after[1]


async def test_a_gpu_beyond_the_limit_gets_a_new_process(warm, spec_of):
    waiting = await warm.all_ready()
    assert await warm.run(spec_of("Points"), "third", gpu_index=NUM_GPUS) not in waiting.values()
    assert warm.launcher.warm_pool.ready == waiting


async def test_a_torchrun_script_gets_a_new_process(warm, spec_of):
    """A warm worker sees its own GPU only, and the script those of all its local ranks. The one of its slot ends."""
    waiting = await warm.all_ready()
    spec = spec_of("examples.ddp.snapshots:__torchrun__")
    worker = await warm.launch(spec, "script", gpu_index=1)
    assert worker.pid not in waiting.values()
    assert warm.launcher.warm_pool.ready == {0: waiting[0]}
    await warm.when(lambda: not psutil.pid_exists(waiting[1]))
    worker.kill()
    await warm.when(lambda: worker.exited is not None)
    assert (await warm.all_ready())[0] == waiting[0]


async def test_a_dead_warm_worker_is_replaced(warm, spec_of):
    waiting = await warm.all_ready()
    os.kill(waiting[0], signal.SIGKILL)
    await warm.when(lambda: warm.launcher.warm_pool.ready.get(0) not in (None, waiting[0]))
    await warm.run(spec_of("Points"), "fourth", gpu_index=0)


async def test_warm_workers_die_with_their_fork_server_and_are_replaced(warm, spec_of):
    waiting = await warm.all_ready()
    os.kill(psutil.Process(waiting[0]).ppid(), signal.SIGKILL)
    await warm.when(lambda: not set(waiting.values()) & set(warm.launcher.warm_pool.ready.values()))
    await warm.all_ready()
    await warm.run(spec_of("Points"), "fifth", gpu_index=0)
