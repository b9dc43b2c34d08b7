"""The inputs of a padding load as bundles of tasks, read in a thread of its own: an iterator may block."""

import asyncio
import contextlib
import pickle
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.padding_tasks import MAX_TASKS, Task, TaskBundle, encoded_task_bytes

BUNDLE_S = 0.5  # of work in one bundle
MAX_BUNDLE_TASKS = 1_000
MAX_BUNDLE_BYTES = 1 << 20
LINGER_S = 0.02  # that a task waits for its bundle to fill
_LEAST_TASK_S = 1e-6
_MAX_READ_TASKS = 4 * MAX_BUNDLE_TASKS
_MAX_READ_BYTES = 4 * MAX_BUNDLE_BYTES

assert MAX_BUNDLE_TASKS <= MAX_TASKS


class TaskFeed:
    """Made on the event loop that takes the bundles. Reads a few bundles ahead, so its memory is bounded."""

    def __init__(self, inputs: Iterable[Any], task_s: float, max_bundle_tasks: int = MAX_BUNDLE_TASKS) -> None:
        self._inputs, self._task_s, self._max_bundle_tasks = inputs, task_s, max_bundle_tasks
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._num_bytes = 0
        self._error: Exception | None = None
        self._has_ended = False  # no more inputs are read
        self._is_waited_for = True
        self._news = asyncio.Event()
        threading.Thread(target=self._run, name="inputs", daemon=True).start()  # it must not delay an exit

    def measured(self, task_s: float) -> None:
        """A task took so long: bundles follow the running mean."""
        self._task_s = max(self._task_s + 0.1 * (task_s - self._task_s), _LEAST_TASK_S)

    @property
    def has_tasks(self) -> bool:
        """Whether tasks are read that no bundle has."""
        return bool(self._tasks)

    async def next_bundle(self, most: int) -> TaskBundle | None:
        """The next bundle, of at most `most` tasks; None after the last one, or if none is wanted.

        Raises what the inputs raise, TooLarge.
        """
        most = min(max(int(BUNDLE_S / self._task_s), 1), self._max_bundle_tasks, most)
        while not (self._tasks or self._has_ended):
            self._news.clear()
            self._is_waited_for = True
            if not (self._tasks or self._has_ended):
                await self._news.wait()
        if len(self._tasks) < most and not self._has_ended:
            await asyncio.sleep(LINGER_S)
        return self._take(most)

    def close(self) -> None:
        """Read no more inputs."""
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    def _take(self, most: int) -> TaskBundle | None:
        taken, num_bytes = list[Task](), 0
        with self._changed:
            while self._tasks and len(taken) < most:
                size = encoded_task_bytes(self._tasks[0][1])
                if taken and num_bytes + size > MAX_BUNDLE_BYTES:
                    break
                taken.append(self._tasks.popleft())
                num_bytes += size
            self._num_bytes -= num_bytes
            self._changed.notify()
            if not taken and self._error is not None:
                raise self._error
        return TaskBundle(tasks=tuple(taken)) if taken else None

    # -- in the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        error: Exception | None = None
        try:
            for index, task_input in enumerate(self._inputs):
                if not self._add((index, _pickled(index, task_input))):
                    return
        except Exception as raised:
            error = raised
        except BaseException as raised:  # e.g. SystemExit: it would end the thread only
            error = RuntimeError(f"the inputs raised {raised!r}")
        with self._changed:
            self._error, self._has_ended = error, True
        self._tell()

    def _add(self, task: Task) -> bool:
        """Waits while enough are read. False: no more are wanted. Raises TooLarge."""
        size = encoded_task_bytes(task[1])
        if size > MAX_BUNDLE_BYTES:
            raise TooLarge(f"task {task[0]}", size, MAX_BUNDLE_BYTES)
        with self._changed:
            while not self._has_ended and self._is_full():
                self._changed.wait()
            if self._has_ended:
                return False
            self._tasks.append(task)
            self._num_bytes += size
        if self._is_waited_for:
            self._tell()
        return True

    def _is_full(self) -> bool:
        return len(self._tasks) >= _MAX_READ_TASKS or self._num_bytes >= _MAX_READ_BYTES

    def _tell(self) -> None:
        self._is_waited_for = False
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the load has ended
            self._loop.call_soon_threadsafe(self._news.set)


def _pickled(index: int, task_input: Any) -> bytes:
    """Raises TypeError."""
    try:
        return pickle.dumps(task_input, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # also what the class of the input raises
        raise TypeError(f"the input of task {index} cannot be pickled: {error}") from error
