"""Padding loads from the client's side: open a load, feed its tasks, follow its results.

Inputs and results are pickled here and in the runners only. Memory stays bounded: tasks are fed as fast as the pool
stores them, and results are passed on as they come.
"""

import asyncio
import contextlib
import pickle
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from elasticflow.client.command_requests import CommandRequests, fresh_message_id
from elasticflow.client.ledger import with_retry
from elasticflow.errors import LoadNotOpened, LoadWasCancelled
from elasticflow.sdk.packaging import Package
from elasticflow.sdk.times import Duration
from elasticflow.shared.errors import StorageFull
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.commands import CancelLoad, OpenLoad, SealLoad
from elasticflow.shared.messages.events import (
    CancelLoadRejected,
    LoadCancelled,
    LoadOpened,
    LoadRejected,
    LoadSealed,
    SealRejected,
)
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import (
    Task,
    TaskBundle,
    TaskResult,
    decode_result,
    encode_bundle,
    split_into_bundles,
)
from elasticflow.shared.state.load import LoadPhase

REPLY_TIMEOUT_S = 30.0
BUNDLE_S = 0.5  # of work in one bundle
MAX_BUNDLE_BYTES = 1 << 20
MAX_BUNDLE_TASKS = 1_000
MAX_READ_BUNDLES = 4  # that wait to be stored
FINISH_TIMEOUT_S = 10.0
FULL_S = 0.5  # between two attempts to store a bundle in a full stream


class LoadRequests(CommandRequests):
    """The commands and the data of padding loads."""

    async def open_load(
        self, spec: LoadSpec, *, load_id: str, code: Package | None = None, timeout: Duration = REPLY_TIMEOUT_S
    ) -> LoadOpened | LoadRejected | LoadCancelled:
        """Open a load with its code. Raises InvalidJob, Undecided."""
        command = OpenLoad(load_id=load_id, tenant=self.tenant, spec=spec)
        return await self._reply_to(command, (LoadOpened, LoadRejected, LoadCancelled), timeout, code=code)

    async def seal_load(
        self, load_id: str, num_tasks: int, *, timeout: Duration = REPLY_TIMEOUT_S
    ) -> LoadSealed | SealRejected:
        """No more tasks will follow. Raises Undecided."""
        command = SealLoad(load_id=load_id, tenant=self.tenant, num_tasks=num_tasks)
        return await self._reply_to(command, (LoadSealed, SealRejected), timeout)

    async def cancel_load(
        self, load_id: str, *, reason: str = "", timeout: Duration = REPLY_TIMEOUT_S
    ) -> LoadCancelled | CancelLoadRejected:
        """Execute no more tasks. Raises Undecided."""
        command = CancelLoad(load_id=load_id, tenant=self.tenant, reason=reason)
        return await self._reply_to(command, (LoadCancelled, CancelLoadRejected), timeout)

    async def results_of(
        self, inputs: Iterable[Any], spec: LoadSpec, *, load_id: str, code: Package | None = None
    ) -> AsyncGenerator[TaskResult]:
        """Execute one task for each input; yields the result of each in the order of their ends.

        The load is cancelled if the caller stops before the last result. Raises LoadNotOpened, LoadWasCancelled,
        InvalidJob, Undecided, and what the inputs raise.
        """
        opened = await self.open_load(spec, load_id=load_id, code=code)
        if not isinstance(opened, LoadOpened):
            why = opened.explanation if isinstance(opened, LoadRejected) else "a load of this name was cancelled"
            raise LoadNotOpened(load_id, why)
        results = self._bus.results(self._pool, load_id)
        feeding = asyncio.create_task(self._feed(load_id, spec, inputs), name=f"tasks of {load_id}")
        cancelled = asyncio.create_task(self._cancelled(load_id), name=f"cancellation of {load_id}")
        waiting = asyncio.ensure_future(anext(results))
        num_results, is_complete = 0, False
        try:
            while not is_complete:
                pending = {waiting, cancelled} if feeding.done() else {waiting, cancelled, feeding}
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if cancelled.done():
                    raise LoadWasCancelled(load_id, cancelled.result())
                if waiting.done():
                    for record in waiting.result():
                        num_results += 1
                        yield decode_result(record.data)
                    waiting = asyncio.ensure_future(anext(results))
                is_complete = feeding.done() and num_results >= feeding.result()
        finally:
            for task in (waiting, feeding, cancelled):
                task.cancel()
            await asyncio.wait({waiting, feeding, cancelled})
            await self._close(load_id, is_complete=is_complete)

    async def _cancelled(self, load_id: str) -> str:
        """Wait until the load is cancelled; the reason."""
        async with contextlib.aclosing(self.states()) as states:
            async for state in states:
                load = state.loads.get(load_id)
                if load is not None and load.phase is LoadPhase.CANCELLED:
                    return load.explanation
        raise AssertionError("the ledger is followed for ever")

    async def _close(self, load_id: str, *, is_complete: bool) -> None:
        """Delete the results once the ledger has the end of the load, for which the monitor counts them."""
        if is_complete:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_TIMEOUT_S), contextlib.aclosing(self.states()) as states:
                    async for state in states:
                        if load_id not in state.loads or not state.loads[load_id].live:
                            return await with_retry(self._bus.delete_load, self._pool, load_id, with_results=True)
        command = CancelLoad(load_id=load_id, tenant=self.tenant, reason="its client stopped")
        await self._publish(command, fresh_message_id(command))
        return None

    async def _feed(self, load_id: str, spec: LoadSpec, inputs: Iterable[Any]) -> int:
        """Store all tasks, then seal the load. Returns their number. Raises what the inputs raise."""
        num_tasks, bundles = 0, _Bundles(inputs, spec)
        try:
            while (bundle := await bundles.next()) is not None:
                await self._store(load_id, bundle)
                num_tasks += len(bundle.tasks)
        finally:
            bundles.close()
        sealed = await self.seal_load(load_id, num_tasks)
        if isinstance(sealed, SealRejected):
            raise LoadWasCancelled(load_id, sealed.explanation)
        return num_tasks

    async def _store(self, load_id: str, bundle: TaskBundle) -> None:
        data, message_id = encode_bundle(bundle), f"tasks-{load_id}-{bundle.tasks[0][0]}"
        while True:
            with contextlib.suppress(StorageFull):
                await with_retry(self._bus.append, subjects.tasks(self._pool, load_id), data, message_id=message_id)
                return
            await asyncio.sleep(FULL_S)


class _Bundles:
    """Reads the inputs in a thread of its own: an iterator may block. A daemon, so that it never delays an exit."""

    def __init__(self, inputs: Iterable[Any], spec: LoadSpec) -> None:
        self._inputs, self._max_tasks = inputs, min(max(int(BUNDLE_S / spec.task_s), 1), MAX_BUNDLE_TASKS)
        self._loop = asyncio.get_running_loop()
        self._read: asyncio.Queue[TaskBundle | BaseException | None] = asyncio.Queue(MAX_READ_BUNDLES)
        self._is_closed = False
        threading.Thread(target=self._run, name="inputs", daemon=True).start()

    async def next(self) -> TaskBundle | None:
        """None after the last one. Raises what the inputs raise."""
        item = await self._read.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Read no more inputs."""
        self._is_closed = True
        while not self._read.empty():
            self._read.get_nowait()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the load has ended
            try:
                bundles = split_into_bundles(
                    _pickled(self._inputs), max_bytes=MAX_BUNDLE_BYTES, max_tasks=self._max_tasks
                )
                for bundle in bundles:
                    self._put(bundle)
                    if self._is_closed:
                        return
                self._put(None)
            except Exception as error:
                self._put(error)

    def _put(self, item: TaskBundle | Exception | None) -> None:
        storing = self._read.put(item)
        try:
            stored = asyncio.run_coroutine_threadsafe(storing, self._loop)
        except RuntimeError:
            storing.close()
            raise
        stored.result()


def _pickled(inputs: Iterable[Any]) -> Iterator[Task]:
    for index, task_input in enumerate(inputs):
        yield index, pickle.dumps(task_input, pickle.HIGHEST_PROTOCOL)
