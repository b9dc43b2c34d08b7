"""Detached loads: one client sends the tasks and leaves, another one reads the stored results later."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Any

from elasticflow.client.loads import LoadRequests
from elasticflow.client.result_values import delete_result_files
from elasticflow.client.result_window import ResultWindow
from elasticflow.client.task_feed import TaskFeed
from elasticflow.errors import LoadInUse, LoadWasCancelled, ResultsGone, UnknownLoad
from elasticflow.sdk.packaging import Package
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import TaskResult
from elasticflow.shared.runtime.bus.load_lease import has_load_lease
from elasticflow.shared.runtime.bus.with_retry import with_retry
from elasticflow.shared.state.load import LoadPhase

MISSING_S = 10.0  # without a result of a finished load: longer than a reader takes to notice a lost connection


@dataclass(frozen=True, slots=True, kw_only=True)
class SentLoad:
    """A sealed load. is_whole: it has all inputs; more would give more results than may be stored unread."""

    load_id: str
    num_tasks: int
    is_whole: bool


class DetachedLoads(LoadRequests):
    """Sends whole loads, and reads the results of loads that other clients sent."""

    async def send_load(
        self, inputs: Iterable[Any], spec: LoadSpec, *, load_id: str, code: Package | None = None
    ) -> SentLoad:
        """Open a load, store a task for each input, and seal it. Its results are kept.

        Waits for the sizes of the first results if there are many inputs. The load is cancelled if the caller stops
        earlier. Raises LoadNotOpened, LoadWasCancelled, InvalidJob, Undecided, TooLarge, and what the inputs raise.
        """
        client_id = await self._open(spec, load_id, code)
        feed, window = TaskFeed(inputs, spec.task_s), ResultWindow(keeps_results=True)
        feeding = asyncio.create_task(self._feed(load_id, client_id, feed, window), name=f"tasks of {load_id}")
        following = asyncio.create_task(self._cancelled(load_id, window), name=f"end of {load_id}")
        measuring = asyncio.create_task(self._measure(load_id, feed, window), name=f"results of {load_id}")
        holding = asyncio.create_task(self._hold_lease(load_id, client_id), name=f"lease of {load_id}")
        is_sent = False
        try:
            await asyncio.wait({feeding, following, measuring}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                raise LoadWasCancelled(load_id, following.result())
            num_tasks = (feeding if feeding.done() else measuring).result()
            is_sent = True
            return SentLoad(load_id=load_id, num_tasks=num_tasks, is_whole=not feed.has_tasks)
        finally:
            feed.close()
            for task in (feeding, following, measuring, holding):
                task.cancel()
            await asyncio.wait({feeding, following, measuring, holding})
            if not is_sent:
                await self._abandon(load_id)

    async def stored_results(self, load_id: str) -> AsyncGenerator[TaskResult]:
        """The results of a load in the order of their ends, until it has ended; none is deleted.

        Raises LoadInUse if the client that opened it still runs, UnknownLoad, LoadWasCancelled, ResultsGone,
        OperatorsOnly.
        """
        self.require_operator()
        if await with_retry(has_load_lease, self._bus, self._pool, load_id):
            raise LoadInUse(load_id)
        window, results = ResultWindow(keeps_results=True), self._bus.results(self._pool, load_id)
        finishing = asyncio.create_task(self._finished(load_id), name=f"end of {load_id}")
        waiting = asyncio.ensure_future(anext(results))
        try:
            while not (finishing.done() and window.num_read >= finishing.result()):
                pending, limit_s = ({waiting}, MISSING_S) if finishing.done() else ({waiting, finishing}, None)
                done, _ = await asyncio.wait(pending, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise ResultsGone(load_id, finishing.result() - window.num_read, finishing.result())
                if waiting.done():
                    for record in waiting.result():
                        for result in window.read(record):
                            yield result
                    waiting = asyncio.ensure_future(anext(results))
        finally:
            waiting.cancel()
            finishing.cancel()
            await asyncio.wait({waiting, finishing})

    async def delete_stored_results(self, load_id: str) -> None:
        """Of a load that has ended, with the files of large ones. A repeat has no effect."""
        await with_retry(self._bus.delete_load, self._pool, load_id, with_results=True)
        delete_result_files(load_id, self.endpoint.data_dir)

    async def _finished(self, load_id: str) -> int:
        """Wait until the load has finished; the number of its tasks. Raises UnknownLoad, LoadWasCancelled."""
        async with contextlib.aclosing(self.states()) as states:
            async for state in states:
                load = state.loads.get(load_id)
                if load is None:
                    raise UnknownLoad(load_id, self._pool)
                if load.phase is LoadPhase.CANCELLED:
                    raise LoadWasCancelled(load_id, load.explanation)
                if load.phase is LoadPhase.FINISHED and load.num_tasks is not None:
                    return load.num_tasks
        raise AssertionError("the ledger is followed for ever")

    async def _measure(self, load_id: str, feed: TaskFeed, window: ResultWindow) -> int:
        """Read results for their sizes and times, without end."""
        async with contextlib.aclosing(self._bus.results(self._pool, load_id)) as batches:  # pyright: ignore[reportArgumentType]
            async for batch in batches:
                for record in batch:
                    for result in window.read(record):
                        feed.measured(result.task_s)
        raise AssertionError("results are followed for ever")
