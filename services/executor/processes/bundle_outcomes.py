"""What becomes of the tasks of a bundle: an outcome of each, or the end of the runner before that."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from elasticflow.services.executor.processes.fork_server_client import Exited
from elasticflow.shared.messages.worker_protocol.task_running import TaskDone, TaskFailed

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
