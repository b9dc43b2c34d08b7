"""The executor's handle of a runner: a warm process that executes tasks of one padding load on one GPU or CPU slot.

Inputs and results are opaque bytes here. The runner is killed at once where its GPU is needed (`preempt`), where a task
exceeds its time-out, and where its messages are not as agreed: it executes users' code, so it is not trusted.
"""

import asyncio
import math
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from elasticflow.services.executor.processes.fork_server_client import Exited, ForkedProcess
from elasticflow.services.executor.processes.job_logs import bounded
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader
from elasticflow.shared.messages.worker_protocol.task_running import (
    MAX_TASK_BYTES,
    FromRunner,
    RunnerFailed,
    RunnerReady,
    RunTasks,
    Task,
    TaskDone,
    TaskFailed,
    bundle_frames,
    too_large,
)

# --- bundle outcomes -----------------------------------------------------------------------------------
# What becomes of the tasks of a bundle: an outcome of each, or the end of the runner before that.

Outcome = TaskDone | TaskFailed

EndCause = Literal[
    "exited",  # by itself: sys.exit or os._exit in a task, or an ExitCode, e.g. DEVICE_UNUSABLE
    "signalled",  # by a signal that the executor did not send, e.g. a segmentation fault
    "function unusable",
    "channel broken",  # it sent bytes that are no message, or no allowed one
    "start timed out",
    "task timed out",
    "preempted",
    "ended",  # by `TaskRunner.end`
]


@dataclass(frozen=True, slots=True)
class TaskKey:
    """index: of the task in its load."""

    bundle_id: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerEnded:
    """The runner and its process group are gone.

    under_way: the task that was executed last and has no outcome from the runner; after "exited" and "signalled" it
        is probably the reason of the end. None: no task was under way.
    unfinished: tasks without an outcome, in order. Of a time-out, the task under way is none of them: it has failed.
    error, traceback: of an unusable function; error: also of a broken channel.
    """

    cause: EndCause
    exited: Exited
    under_way: TaskKey | None = None
    unfinished: tuple[TaskKey, ...] = ()
    error: str = ""
    traceback: str = ""


class BundleOutcomes(AsyncIterator[Outcome | RunnerEnded]):
    """The outcomes of a bundle as they arrive; at last `RunnerEnded` if the runner ends before all have one."""

    def __init__(self, num_tasks: int) -> None:
        self._num_missing = num_tasks
        self._items: asyncio.Queue[Outcome | RunnerEnded | None] = asyncio.Queue()  # at most one for each task, and two
        if num_tasks == 0:
            self._items.put_nowait(None)

    def add(self, outcome: Outcome) -> None:
        self._items.put_nowait(outcome)
        self._num_missing -= 1
        if self._num_missing == 0:
            self._items.put_nowait(None)

    def end_early(self, ended: RunnerEnded) -> None:
        """No effect if every task has its outcome."""
        if self._num_missing:
            self._num_missing = 0
            self._items.put_nowait(ended)
            self._items.put_nowait(None)

    async def __anext__(self) -> Outcome | RunnerEnded:
        item = await self._items.get()
        if item is None:
            self._items.put_nowait(None)  # for a later call
            raise StopAsyncIteration
        return item


# --- task runner ---------------------------------------------------------------------------------------

START_TIMEOUT_S = 120.0  # for the import of the function's module from a cold disk
_READ_DELAY_S = 0.05  # an executor that was stalled reads the outcomes that have arrived before it judges a task
MAX_BUNDLES = 2  # one that is executed, and one that waits in the runner


class TaskRunner:
    """Made by `start`. task_timeout_s: of each task, from the end of the one before it."""

    def __init__(self, process: ForkedProcess, order: RunTasks, *, task_timeout_s: float) -> None:
        self._process = process
        self._log_file = Path(order.log_file)
        self._task_timeout_s = task_timeout_s
        self._pending: deque[tuple[TaskKey, BundleOutcomes]] = deque()  # sent and without an outcome, in order
        self._drained = asyncio.Event()  # nothing is pending
        self._drained.set()
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting_since_s = self._now_s()  # for readiness or for the next outcome, if one is due
        self._killed_for: EndCause | None = None
        self._overdue: TaskKey | None = None
        self._executes = False  # the runner takes up tasks
        self._error = self._traceback = ""
        process.channel.send(order)
        self._timing = asyncio.create_task(self._end_start_after_timeout(), name=f"runner {self.pid} start")
        self._following = asyncio.create_task(self._follow(), name=f"runner {self.pid}")

    @classmethod
    async def start(
        cls,
        fork: Callable[[Sequence[int]], Awaitable[ForkedProcess]],
        order: RunTasks,
        *,
        task_timeout_s: float = math.inf,
    ) -> "TaskRunner":
        """Return once the process exists. fork: `Launcher.fork`. Raises LaunchFailed."""
        return cls(await fork((order.gpu_index,)), order, task_timeout_s=task_timeout_s)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def num_bundles(self) -> int:
        """Bundles with a task without an outcome."""
        return len({outcomes for _, outcomes in self._pending})

    @property
    def was_ready(self) -> bool:
        """Whether it has loaded its function."""
        return self._ready.done() and self._ready.result()

    async def ready(self) -> bool:
        """Wait until the function is loaded. False: the runner has ended before, and `ended` says how."""
        return await asyncio.shield(self._ready)

    def run(self, bundle_id: int, tasks: Sequence[Task]) -> BundleOutcomes:
        """Send the tasks, also before the runner is ready, and return their outcomes to come.

        At most MAX_BUNDLES at a time. A task whose input is above MAX_TASK_BYTES fails at once; the others have their
        outcomes in order.
        """
        assert self.num_bundles < MAX_BUNDLES, f"runner {self.pid} has {self.num_bundles} bundles"
        outcomes = BundleOutcomes(len(tasks))
        sendable = [task for task in tasks if len(task[1]) <= MAX_TASK_BYTES]
        for index, task_input in tasks:
            if len(task_input) > MAX_TASK_BYTES:
                error = too_large("input", len(task_input))
                outcomes.add(TaskFailed(bundle_id=bundle_id, index=index, error=error))
        keys = [TaskKey(bundle_id, index) for index, _ in sendable]
        if self._following.done():
            outcomes.end_early(replace(self._following.result(), under_way=None, unfinished=tuple(keys)))
            return outcomes
        if keys and not self._pending:
            self._waiting_since_s = self._now_s()
            self._drained.clear()
        self._pending += ((key, outcomes) for key in keys)
        for frame in bundle_frames(bundle_id, sendable):
            self._process.channel.send(frame)
        return outcomes

    def kill(self) -> None:
        """Preempt it without waiting for its end."""
        self._kill("preempted")

    async def preempt(self) -> RunnerEnded:
        """Kill the process group at once, and wait until it is reaped. Idempotent."""
        self.kill()
        return await self.ended()

    async def end(self) -> RunnerEnded:
        """Wait until no task is pending, then end the process."""
        await self._drained.wait()
        self._kill("ended")
        return await self.ended()

    async def ended(self) -> RunnerEnded:
        """Wait for the end, whatever its cause."""
        return await asyncio.shield(self._following)

    def _kill(self, cause: EndCause) -> None:
        if self._killed_for is None:
            self._killed_for = cause
        self._process.kill()

    # --- following ----------------------------------------------------------------------------------------

    async def _follow(self) -> RunnerEnded:
        async with bounded(self._log_file):
            exited = await self._process.follow(
                FrameReader[FromRunner](*get_args(FromRunner)), self._take, self._report_broken_channel
            )
        self._timing.cancel()
        return self._finish(exited)

    def _take(self, message: FromRunner) -> None:
        """Raises BrokenChannel for a message that is not due."""
        match message:
            case RunnerReady() if not self._ready.done():
                self._ready.set_result(True)
                self._executes = True
                self._waiting_since_s = self._now_s()
                self._timing.cancel()
                if math.isfinite(self._task_timeout_s):
                    self._timing = asyncio.create_task(self._end_after_timeout(), name=f"runner {self.pid} time-out")
            case RunnerFailed(error=error, traceback=traceback) if not self._ready.done():
                self._killed_for, self._error, self._traceback = "function unusable", error, traceback
            case TaskDone() | TaskFailed() if self._executes:
                self._take_outcome(message)
            case _:
                raise BrokenChannel(f"the runner sent {type(message).__name__} at the wrong time")

    def _take_outcome(self, outcome: Outcome) -> None:
        key = TaskKey(outcome.bundle_id, outcome.index)
        if not self._pending or self._pending[0][0] != key:
            raise BrokenChannel(f"the runner sent an outcome of {key}, which is not under way")
        _, outcomes = self._pending.popleft()
        self._waiting_since_s = self._now_s()
        outcomes.add(outcome)
        if isinstance(outcome, TaskFailed) and outcome.ends_runner:
            self._executes = False
        if not self._pending:
            self._drained.set()

    def _report_broken_channel(self, reason: str) -> None:
        if self._killed_for is None:
            self._killed_for, self._error = "channel broken", reason

    def _finish(self, exited: Exited) -> RunnerEnded:
        """Fail the overdue task, and end the outcomes of all bundles."""
        under_way = self._pending[0][0] if self._pending and self._executes else None
        if self._overdue is not None and under_way == self._overdue:
            _, outcomes = self._pending.popleft()
            outcomes.add(self._time_out_of(self._overdue))
        ended = RunnerEnded(
            cause=self._cause_of(exited),
            exited=exited,
            under_way=under_way,
            unfinished=tuple(key for key, _ in self._pending),
            error=self._error,
            traceback=self._traceback,
        )
        for outcomes in {outcomes for _, outcomes in self._pending}:
            outcomes.end_early(ended)
        self._pending.clear()
        self._drained.set()
        if not self._ready.done():
            self._ready.set_result(False)
        return ended

    def _cause_of(self, exited: Exited) -> EndCause:
        """The runner's own end counts, even if the executor was about to kill it."""
        if self._killed_for == "function unusable":
            return self._killed_for
        if exited.code is not None:
            return "exited"
        return self._killed_for if self._killed_for and exited.signal == signal.SIGKILL else "signalled"

    # --- time-outs ----------------------------------------------------------------------------------------

    async def _end_start_after_timeout(self) -> None:
        await asyncio.sleep(START_TIMEOUT_S)
        if self._killed_for is None:
            self._error = f"the function's module was not imported within {START_TIMEOUT_S:.0f} s"
        self._kill("start timed out")

    async def _end_after_timeout(self) -> None:
        """Kill the runner when a task is overdue."""
        is_overdue = False
        while not is_overdue:
            await asyncio.sleep(max(self._left_s(), 0.0))
            await asyncio.sleep(_READ_DELAY_S)
            is_overdue = self._left_s() <= 0
        self._overdue, _ = self._pending[0]
        self._kill("task timed out")

    def _left_s(self) -> float:
        """Seconds until the task under way is overdue, or until one that starts now would be."""
        waited_s = self._now_s() - self._waiting_since_s if self._pending else 0.0
        return self._task_timeout_s - waited_s

    def _time_out_of(self, key: TaskKey) -> TaskFailed:
        error = f"it did not end within its time-out of {self._task_timeout_s:g} s: split it, or raise the time-out"
        return TaskFailed(bundle_id=key.bundle_id, index=key.index, error=error, task_s=self._task_timeout_s)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
