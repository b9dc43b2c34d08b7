"""Padding loads from the client's side: open a load, feed its tasks, follow its results.

Inputs and results are pickled here and in the runners only. Memory stays bounded: tasks are fed as fast as the pool
stores them, and results are passed on as they come.
"""

import asyncio
import contextlib
import pickle
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from elasticflow.client.command_requests import CommandRequests, fresh_message_id
from elasticflow.client.ledger import with_retry
from elasticflow.errors import LoadNotOpened
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

REPLY_TIMEOUT_S = 30.0
BUNDLE_S = 0.5  # of work in one bundle
MAX_BUNDLE_BYTES = 1 << 20
MAX_BUNDLE_TASKS = 1_000
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

        The load is cancelled if the caller stops before the last result. Raises LoadNotOpened, InvalidJob, Undecided.
        """
        opened = await self.open_load(spec, load_id=load_id, code=code)
        if not isinstance(opened, LoadOpened):
            why = opened.explanation if isinstance(opened, LoadRejected) else "a load of this name was cancelled"
            raise LoadNotOpened(load_id, why)
        feeding = asyncio.create_task(self._feed(load_id, spec, inputs), name=f"tasks of {load_id}")
        num_results, is_complete = 0, False
        try:
            results = self._bus.results(self._pool, load_id)
            async with contextlib.aclosing(results):  # pyright: ignore[reportArgumentType]
                waiting = asyncio.ensure_future(anext(results))
                while not is_complete:
                    await asyncio.wait({waiting, feeding}, return_when=asyncio.FIRST_COMPLETED)
                    if waiting.done():
                        for record in waiting.result():
                            num_results += 1
                            yield decode_result(record.data)
                        waiting = asyncio.ensure_future(anext(results))
                    is_complete = feeding.done() and num_results >= feeding.result()
                    if feeding.done() and not is_complete:
                        await asyncio.wait({waiting})
                waiting.cancel()
                await asyncio.wait({waiting})
        finally:
            feeding.cancel()
            if is_complete:
                await self._forget(load_id)
            else:
                command = CancelLoad(load_id=load_id, tenant=self.tenant, reason="its client stopped")
                await self._publish(command, fresh_message_id(command))

    async def _forget(self, load_id: str) -> None:
        """Delete the results once the ledger has the end of the load: the monitor counts them for it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_TIMEOUT_S), contextlib.aclosing(self.states()) as states:
                async for state in states:
                    if load_id not in state.loads or not state.loads[load_id].live:
                        break
        await with_retry(self._bus.delete_load, self._pool, load_id, with_results=True)

    async def _feed(self, load_id: str, spec: LoadSpec, inputs: Iterable[Any]) -> int:
        """Store all tasks, then seal the load. Returns their number."""
        num_tasks = 0
        bundles = split_into_bundles(
            _pickled(inputs),
            max_bytes=MAX_BUNDLE_BYTES,
            max_tasks=min(max(int(BUNDLE_S / spec.task_s), 1), MAX_BUNDLE_TASKS),
        )
        for bundle in bundles:
            await self._store(load_id, bundle)
            num_tasks += len(bundle.tasks)
        await self.seal_load(load_id, num_tasks)
        return num_tasks

    async def _store(self, load_id: str, bundle: TaskBundle) -> None:
        data, message_id = encode_bundle(bundle), f"tasks-{load_id}-{bundle.tasks[0][0]}"
        while True:
            with contextlib.suppress(StorageFull):
                await with_retry(self._bus.append, subjects.tasks(self._pool, load_id), data, message_id=message_id)
                return
            await asyncio.sleep(FULL_S)


def _pickled(inputs: Iterable[Any]) -> Iterator[Task]:
    for index, task_input in enumerate(inputs):
        yield index, pickle.dumps(task_input, pickle.HIGHEST_PROTOCOL)
