"""Runners of padding loads for tests; their functions are in `testbed/user_code/task_functions.py`."""

import asyncio
import pickle
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from elasticflow.services.executor.processes.launcher import Launcher
from elasticflow.services.executor.processes.task_runner import BundleOutcomes, TaskRunner
from elasticflow.shared.messages.worker_protocol.task_running import RunTasks, TaskDone

USER_CODE = str(Path(__file__).parents[2] / "testbed/user_code")
WAIT_S = 240.0  # far above the usual time


class Runners:
    """Starts runners of one launcher. log: of the one that was started last."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher, self.folder = launcher, folder
        self._numbers = count()
        self._started: list[TaskRunner] = []

    async def start(self, function: str = "misbehave", *, task_timeout_s: float = WAIT_S, **more: Any) -> TaskRunner:
        path = f"task_functions:{function}" if function.isidentifier() else function
        self.log = self.folder / f"runner-{next(self._numbers)}.log"
        order = RunTasks(load_id="load", function=path, code_path=USER_CODE, log_file=str(self.log), **more)
        runner = await TaskRunner.start(self._launcher.fork, order, task_timeout_s=task_timeout_s)
        self._started.append(runner)
        return runner

    async def close(self) -> None:
        for runner in self._started:
            await runner.preempt()


def run(runner: TaskRunner, *inputs: Any, bundle_id: int = 1) -> BundleOutcomes:
    return runner.run(bundle_id, [(index, pickle.dumps(value)) for index, value in enumerate(inputs)])


async def all_of(outcomes: BundleOutcomes) -> list[Any]:
    """Results of finished tasks, other outcomes as they are."""
    async with asyncio.timeout(WAIT_S):
        return [pickle.loads(item.result) if isinstance(item, TaskDone) else item async for item in outcomes]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - processes do not signal their work
            await asyncio.sleep(0.005)
