"""One GPU of this node on loan to padding loads, with a runner for the load whose bundle it executes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from elasticflow.services.executor.loads.bundle_queue import BundleSettlement, PulledBundle
from elasticflow.services.executor.processes.code_archive import CodeArchive, CodeUnusable
from elasticflow.services.executor.processes.fork_server_client import ForkedProcess
from elasticflow.services.executor.processes.task_runner import RunnerEnded, TaskRunner
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.task_running import RunTasks, TaskDone, TaskFailed
from elasticflow.shared.scheduling.padding.cost_model import TaskCost
from elasticflow.shared.state.load import Load

RETRY_S = 1.0  # after a runner that could not be started
LONGEST_PAUSE_S = 30.0  # of a GPU on which no runner starts
SHORTEST_TASK_S = 1e-6
CPU_NICENESS = 19  # the lowest priority: else workers that share cores with runners train, and are measured, slower


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """What all runners of a node share. fork: a process of the fork server, `Launcher.fork`. logs, results: the
    folders for the output of tasks and for large results. cpu_share: cores that a CPU slot may use."""

    node_id: str
    device: Literal["cpu", "cuda"]
    cpu_share: float
    code: CodeArchive
    fork: Callable[[Sequence[int]], Awaitable[ForkedProcess]]
    logs: Path
    results: Path
    log: Any


class PaddingSlot:
    """Executes one bundle at a time, until a job needs the GPU."""

    def __init__(self, gpu_index: int, settings: RunnerSettings) -> None:
        self.gpu_index, self._settings = gpu_index, settings
        self.is_left = False
        self.waits = False  # for a bundle
        self.news = asyncio.Event()  # a bundle, or a job that needs the GPU
        self.settling: asyncio.Task[None] | None = None  # of the bundle before
        self.load: Load | None = None  # of the runner
        self._runner: TaskRunner | None = None
        self._runner_since_s = 0.0
        self._num_bad_starts = 0  # in a row

    @property
    def running_s(self) -> float:
        """Since its runner began; 0 without one."""
        return self._now_s() - self._runner_since_s if self.load is not None else 0.0

    def leave(self) -> None:
        """A job needs the GPU: end the runner now."""
        self.is_left = True
        self.news.set()
        self.kill_runner()

    def kill_runner(self) -> None:
        """Its unfinished tasks go back."""
        if self._runner is not None:
            self._runner.kill()

    async def runner_gone(self) -> None:
        """Wait until the runner has ended and its memory is free."""
        if self._runner is not None:
            await self._runner.preempt()

    async def pause(self) -> None:
        """Wait before the next attempt, longer after each start of a runner that failed."""
        if self._num_bad_starts:
            await asyncio.sleep(min(RETRY_S * 2**self._num_bad_starts, LONGEST_PAUSE_S))

    async def execute(
        self, bundle_id: int, pulled: PulledBundle, settlement: BundleSettlement
    ) -> tuple[list[int], TaskCost | None]:
        """The tasks that go back, and the mean seconds of those that are done; None if none is."""
        began_s, num_done, useful_s, unfinished = self._now_s(), 0, 0.0, list[int]()
        try:
            runner = await self._runner_for(pulled.load)
        except CodeUnusable as error:
            for index, _ in pulled.bundle.tasks:
                settlement.failed(index, str(error))
            return [], None
        except Retry as error:
            self._settings.log.warning("RunnerNotStarted", load_id=pulled.load.load_id, error=str(error))
            await asyncio.sleep(RETRY_S)
            return [index for index, _ in pulled.bundle.tasks], None
        async for outcome in runner.run(bundle_id, pulled.bundle.tasks):
            match outcome:
                case TaskDone(task_s=task_s):
                    self._num_bad_starts = 0
                    settlement.done(outcome)
                    num_done, useful_s = num_done + 1, useful_s + task_s
                case TaskFailed(index=index, error=error, traceback=traceback, task_s=task_s):
                    settlement.failed(index, error, traceback, task_s)
                case RunnerEnded():
                    unfinished = self._runner_ended(runner, outcome, settlement)
        if not num_done:
            return unfinished, None
        overhead_s = max(self._now_s() - began_s - useful_s, 0.0) / num_done
        task_s = max(useful_s / num_done, SHORTEST_TASK_S)
        return unfinished, TaskCost(task_s=task_s, overhead_s=overhead_s, start_stop_s=0.0)

    def _runner_ended(self, runner: TaskRunner, ended: RunnerEnded, settlement: BundleSettlement) -> list[int]:
        """The tasks that go back without a failure."""
        self._runner = self.load = None
        unfinished = [key.index for key in ended.unfinished]
        self._settings.log.info("RunnerEnded", gpu_index=self.gpu_index, cause=ended.cause, error=ended.error)
        if ended.cause in ("preempted", "ended", "task timed out"):
            return unfinished
        if ended.exited.code == ExitCode.DEVICE_UNUSABLE:  # no fault of the tasks: another GPU may do
            self._num_bad_starts += 1
            return unfinished
        if not runner.was_ready:
            self._num_bad_starts += 1
            for index in unfinished:
                settlement.failed(index, ended.error or _how_it_ended(ended), ended.traceback)
            return []
        if ended.under_way is not None and ended.under_way.index in unfinished:
            unfinished.remove(ended.under_way.index)
            settlement.failed(ended.under_way.index, _how_it_ended(ended))
        return unfinished

    async def _runner_for(self, load: Load) -> TaskRunner:
        """The runner of this load; one of another load ends first. Raises CodeUnusable, LaunchFailed."""
        if self._runner is not None and self.load is not None and self.load.identity == load.identity:
            return self._runner
        await self.runner_gone()
        self._runner = self.load = None
        settings, spec = self._settings, load.spec
        order = RunTasks(
            load_id=load.load_id,
            function=spec.task_function,
            log_file=str(settings.logs / load.folder_name / f"{settings.node_id}-{self.gpu_index}.log"),
            code_path=await settings.code.folder(load.tenant, spec.code_digest),
            device=settings.device,
            gpu_index=self.gpu_index,
            cpu_share=settings.cpu_share if settings.device == "cpu" else 1.0,
            cpu_niceness=CPU_NICENESS if settings.device == "cpu" else 0,
            memory_limit_bytes=spec.memory_bytes,
            results_folder=str(settings.results / load.folder_name),
        )
        runner = await TaskRunner.start(settings.fork, order, task_timeout_s=spec.task_timeout_s)
        self._runner, self.load, self._runner_since_s = runner, load, self._now_s()
        if self.is_left:  # while it started
            runner.kill()
        return runner

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _how_it_ended(ended: RunnerEnded) -> str:
    if ended.error:
        return f"its runner was ended: {ended.error}"
    if ended.exited.signal is not None:
        return f"it ended its runner with signal {ended.exited.signal}"
    instead = "a task returns or raises an exception, and calls neither sys.exit() nor os._exit()"
    return f"it ended its runner with exit code {ended.exited.code}: {instead}"
