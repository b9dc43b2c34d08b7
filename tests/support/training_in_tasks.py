"""A training manager and runners that execute its tasks, without a pool: tests decide who gets which task."""

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticflow.client.training_load import TrainingManager
from elasticflow.services.executor.processes.task_runner import TaskRunner
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Finished
from elasticflow.shared.messages.worker_protocol.task_running import TaskDone, TaskFailed
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan
from elasticflow.shared.messages.worker_protocol.training_tasks import GradientTask, ManagerReady, TasksDue
from tests.support.task_runners import USER_CODE, WAIT_S, Runners

FUNCTION = "elasticflow.services.executor.worker.training_tasks.gradient_task:compute"


@dataclass
class Training:
    """A manager, its tasks that are due, and what it has sent."""

    manager: TrainingManager
    log_file: Path
    received: AsyncIterator[Any]  # one for all messages: another would miss those that arrive together
    ready: ManagerReady
    due: asyncio.Queue[GradientTask]
    messages: list[Any] = field(default_factory=list[Any])
    results: list[Any] = field(default_factory=list[Any])  # of all tasks
    on_due: Callable[[list[GradientTask]], list[GradientTask]] = lambda tasks: tasks

    async def follow(self) -> Finished | Failed | None:
        """Until the end of the manager, queueing the tasks that become due; its result."""
        async for message in self.received:
            self.messages.append(message)
            if isinstance(message, TasksDue):
                tasks = [self.task(message.step, virtual_node) for virtual_node in message.virtual_nodes]
                for task in self.on_due(tasks):
                    self.due.put_nowait(task)
        return next((message for message in self.messages if isinstance(message, Finished | Failed)), None)

    def task(self, step: int, virtual_node: int) -> GradientTask:
        return GradientTask(self.ready.address, self.ready.secret, step, virtual_node)

    async def serve(self, runner: TaskRunner) -> None:
        """Give the runner one due task after another."""
        number = 0
        while True:
            task = await self.due.get()
            number += 1
            async for outcome in runner.run(number, [(number, pickle.dumps(task))]):
                done = isinstance(outcome, TaskDone)
                self.results.append(pickle.loads(outcome.result) if done else outcome)
                if not isinstance(outcome, TaskDone | TaskFailed):  # the runner has ended: the load repeats the task
                    self.due.put_nowait(task)
                    return


@contextlib.asynccontextmanager
async def training(
    spec: Any, checkpoint_dir: Path, *, micro_batch_size: int = 0, **more: Any
) -> AsyncIterator[Training]:
    """A manager that is ready for runners."""
    assignment = Assignment(
        job_id="training",
        plan=GenerationPlan(generation=1, world_size=1, micro_batch_size=micro_batch_size),
        rank=0,
        spec=spec,
        checkpoint_dir=str(checkpoint_dir),
        code_path=USER_CODE,
        **more,
    )
    log_file = checkpoint_dir / "manager.log"
    manager = await TrainingManager.start(assignment, log_file)
    received = manager.messages()
    try:
        async with asyncio.timeout(WAIT_S):
            async for message in received:
                if isinstance(message, Failed):
                    raise AssertionError(message.error)
                if isinstance(message, ManagerReady):
                    break
            else:
                raise AssertionError(log_file.read_text())
        yield Training(manager, log_file, received, message, asyncio.Queue())
    finally:
        await manager.stop()


async def result_of(made: Training, runners: Runners, num_runners: int, **more: Any) -> Finished | Failed | None:
    """Execute all tasks with so many runners."""
    started = [await runners.start(FUNCTION, **more) for _ in range(num_runners)]
    serving = [asyncio.create_task(made.serve(runner)) for runner in started]
    try:
        async with asyncio.timeout(WAIT_S):
            return await made.follow()
    except TimeoutError:
        raise AssertionError(f"no end after {WAIT_S} s: {made.results}; {made.log_file.read_text()}") from None
    finally:
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)
