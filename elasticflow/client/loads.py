"""Padding loads from the client's side: open a load, feed its tasks, follow its results.

Inputs and results are pickled here and in the runners only. Memory stays bounded: tasks are fed as fast as the pool
stores them, and results are passed on as they come.
"""

import asyncio
import contextlib
import hashlib
import pickle
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from elasticflow.client.command_requests import CommandRequests, Package, fresh_message_id
from elasticflow.client.task_feed import MAX_BUNDLE_TASKS, TaskFeed
from elasticflow.errors import (
    LoadNotOpened,
    LoadWasCancelled,
    NotThere,
    ResultFileUnusable,
    TaskError,
    Undecided,
    unknown_load,
)
from elasticflow.shared.errors import ElasticFlowError, MaybeStored, StorageFull, Unavailable
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
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.load_spec import IndexSet, LoadSpec
from elasticflow.shared.messages.padding_tasks import (
    TaskBundle,
    TaskResult,
    decode_results,
    encode_bundle,
)
from elasticflow.shared.runtime.bus.contract import with_retry
from elasticflow.shared.runtime.bus.load_lease import (
    RENEW_EVERY_S,
    has_load_lease,
    release_load_lease,
    renew_load_lease,
    take_load_lease,
)
from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.runtime.process.folder_tree import delete_folder
from elasticflow.shared.state.load import Load, LoadPhase
from elasticflow.times import Duration

# --- load results -------------------------------------------------------------------------------------
# The results of a padding load: their values, and how far tasks may run ahead of them.


def result_folder(data_dir: Path, load: Load) -> Path:
    """Where the large results of this load are. data_dir: of the pool."""
    return data_dir / "results" / load.folder_name


def value_of(result: TaskResult, folder: Path | None) -> Any:
    """What the task returned; runs code of its pickle. folder, and what it raises: as in `pickled_value_of`."""
    return pickle.loads(pickled_value_of(result, folder))


def pickled_value_of(result: TaskResult, folder: Path | None) -> bytes:
    """What the task returned, as its runner pickled it. folder: the `result_folder` of its load, None if it is unknown.

    Raises TaskError if it failed for good, ResultFileUnusable.
    """
    if result.error:
        raise TaskError(result.index, result.attempts, result.error, result.traceback)
    if result.value is not None:
        return result.value
    if folder is None:
        why = "the pool's data folder is not known here: give it as data_dir (--data-dir, EF_DATA_DIR)"
        raise ResultFileUnusable(result.index, result.file_digest, result.node_id, why)
    file = folder / result.file_digest
    try:
        pickled = file.read_bytes()
    except OSError as error:
        why = f"{file}: {error.strerror}; all nodes and this machine must share the data folder"
        raise ResultFileUnusable(result.index, result.file_digest, result.node_id, why) from None
    if hashlib.sha256(pickled).hexdigest() != result.file_digest:
        raise ResultFileUnusable(result.index, result.file_digest, result.node_id, f"{file} is damaged")
    return pickled


# --- result window -------------------------------------------------------------------------------------
# How far the tasks of a load may run ahead of its results, so that the results of no load fill the pool's stream.

MAX_STORED_BYTES = 32 << 20  # of the results of one load
FIRST_TASKS = 256  # before the size of a result is known
MAX_TASKS_AHEAD = 100_000


class ResultWindow:
    """The first result of each task counts, in the order of the stream. A result may be deleted once it is read.

    keeps_results: they are read for their sizes only, and another client deletes them later.
    """

    def __init__(self, *, keeps_results: bool = False) -> None:
        self._keeps_results = keeps_results
        self._read = IndexSet()
        self._stored: deque[tuple[int, int]] = deque()  # sequence and bytes of messages that are read, not deleted
        self._read_to = 0
        self._num_bytes_read = 0
        self._num_bytes_deleted = 0
        self.counted_to = 0  # the sequence of the last result that the ledger counts
        self._moved = asyncio.Event()

    @property
    def num_read(self) -> int:
        """Tasks whose results are read."""
        return len(self._read)

    def read(self, record: LedgerRecord) -> Iterator[TaskResult]:
        """The results in a message that count. Raises Undecodable."""
        for result in decode_results(record.data).results:
            if self._read.add(result.index, result.index):
                yield result
        self._stored.append((record.sequence, len(record.data)))
        self._read_to = record.sequence
        self._num_bytes_read += len(record.data)
        self._moved.set()

    def deletable(self) -> int | None:
        """Up to which sequence results may be deleted, of those that the ledger counts; None: no others than before."""
        up_to = min(self._read_to, self.counted_to)
        is_read = self._stored and self._stored[0][0] <= up_to
        return up_to if is_read and not self._keeps_results else None

    def deleted(self, up_to: int) -> None:
        """Results are deleted up to this sequence."""
        while self._stored and self._stored[0][0] <= up_to:
            self._num_bytes_deleted += self._stored.popleft()[1]
        self._moved.set()

    async def feedable(self, num_fed: int) -> int:
        """Wait until more tasks may be fed; how many. 0: the results that are kept leave no space for others."""
        while (feedable := self._most_fed() - num_fed) <= 0:
            if self._keeps_results and self.num_read and num_fed >= self._most_stored():
                return 0
            self._moved.clear()
            await self._moved.wait()
        return feedable

    def _most_fed(self) -> int:
        if not self.num_read:
            return FIRST_TASKS
        return min(self._most_stored(), self._read.first_missing + MAX_TASKS_AHEAD)

    def _most_stored(self) -> int:
        """Tasks whose results fit, with those that are deleted; further ones may be as large as the mean."""
        mean_bytes = self._num_bytes_read / self.num_read
        stored_bytes = self._num_bytes_read - self._num_bytes_deleted
        num_expected = int((MAX_STORED_BYTES - stored_bytes) / mean_bytes)
        return self.num_read + max(num_expected, 0)


REPLY_TIMEOUT_S = 30.0
DELETE_EVERY_S = 1.0
FINISH_TIMEOUT_S = 10.0
RETRY_S = 0.5  # between two attempts to store a bundle: the stream is full, or no server is there


class OpenedLoad(NamedTuple):
    """A load that this client feeds. client_id: of its lease."""

    load_id: str
    bus_name: str
    client_id: str


class LoadRequests(CommandRequests):
    """The commands and the data of padding loads."""

    async def open_load(
        self, spec: LoadSpec, *, load_id: str, code: Package | None = None, timeout: Duration = REPLY_TIMEOUT_S
    ) -> LoadOpened | LoadRejected | LoadCancelled:
        """Open a load with its code. Raises InvalidJob, Undecided."""
        command = OpenLoad(load_id=load_id, tenant=self.tenant, spec=spec, by_identity=True)
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

    async def result_folder(self, load_id: str) -> Path | None:
        """Where the large results of this load are; None if the pool's data folder is unknown. Raises NotThere."""
        if (data_dir := self.endpoint.data_dir) is None:
            return None
        return result_folder(data_dir, await self._load(load_id))

    async def _load(self, load_id: str) -> Load:
        """Raises NotThere."""
        loads = (await with_retry(self.state)).loads
        load = loads.get(load_id)
        if load is None:
            raise unknown_load(load_id, self._pool, loads)
        return load

    async def results_of(
        self,
        inputs: Iterable[Any],
        spec: LoadSpec,
        *,
        load_id: str,
        code: Package | None = None,
        max_bundle_tasks: int = MAX_BUNDLE_TASKS,
    ) -> AsyncGenerator[TaskResult]:
        """Execute one task for each input; yields the result of each in the order of their ends.

        max_bundle_tasks: one runner executes the tasks of a bundle. By default they take about half a second.
        The load is cancelled if the caller stops before the last result. Raises LoadNotOpened, LoadWasCancelled,
        InvalidJob, Undecided, TooLarge, and what the inputs raise.
        """
        opened = await self._open(spec, load_id, code)
        feed, window = TaskFeed(inputs, spec.task_s, max_bundle_tasks), ResultWindow()
        results = self._bus.results(self._pool, opened.bus_name)
        feeding = asyncio.create_task(self._feed(opened, feed, window), name=f"tasks of {load_id}")
        following = asyncio.create_task(self._cancelled(load_id, window), name=f"end of {load_id}")
        deleting = asyncio.create_task(self._delete_read_results(opened, window), name=f"read results of {load_id}")
        holding = asyncio.create_task(self._hold_lease(opened), name=f"lease of {load_id}")
        waiting = asyncio.ensure_future(anext(results))
        is_complete = False
        try:
            while not is_complete:
                pending = {waiting, following} if feeding.done() else {waiting, following, feeding}
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    raise LoadWasCancelled(load_id, following.result())
                if waiting.done():
                    for record in waiting.result():
                        for result in window.read(record):
                            feed.measured(result.task_s)
                            yield result
                    waiting = asyncio.ensure_future(anext(results))
                is_complete = feeding.done() and window.num_read >= feeding.result()
        finally:
            feed.close()
            beside = (waiting, feeding, following, deleting, holding)
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await self._close(opened, is_complete=is_complete)

    async def _open(self, spec: LoadSpec, load_id: str, code: Package | None) -> OpenedLoad:
        """A load of which this client alone holds the lease.

        Raises KeysUnusable, as one stream has the tasks of all tenants; LoadNotOpened, also for a load that another
        client has used: it may have deleted results.
        """
        self.require_operator()
        opened = await self.open_load(spec, load_id=load_id, code=code)
        if isinstance(opened, LoadRejected):
            raise LoadNotOpened(load_id, opened.explanation)
        load = (await with_retry(self.state)).loads.get(load_id)
        if load is None or load.phase is not LoadPhase.OPEN or load.num_results:
            was = "cancelled" if isinstance(opened, LoadCancelled) else "used"
            raise LoadNotOpened(load_id, f"a load of this name was {was} before: choose another one")
        client_id = fresh_id()
        if not await with_retry(take_load_lease, self._bus, self._pool, load.bus_name, client_id):
            raise LoadNotOpened(load_id, "another client feeds a load of this name: choose another one")
        return OpenedLoad(load_id, load.bus_name, client_id)

    async def _hold_lease(self, opened: OpenedLoad) -> None:
        """Renew the lease until this is cancelled, then release it."""
        try:
            while True:
                with contextlib.suppress(ElasticFlowError):  # the lease outlasts several attempts
                    await renew_load_lease(self._bus, self._pool, opened.bus_name, opened.client_id)
                await asyncio.sleep(RENEW_EVERY_S)
        finally:
            with contextlib.suppress(ElasticFlowError):  # it expires
                await release_load_lease(self._bus, self._pool, opened.bus_name)

    async def _delete_read_results(self, opened: OpenedLoad, window: ResultWindow) -> None:
        """Delete what was read and counted, now and then, until cancelled."""
        while True:
            await asyncio.sleep(DELETE_EVERY_S)
            if (up_to := window.deletable()) is not None:
                with contextlib.suppress(ElasticFlowError):  # the next attempt deletes it
                    await self._bus.delete_results(self._pool, opened.bus_name, up_to=up_to)
                    window.deleted(up_to)

    async def _cancelled(self, load_id: str, window: ResultWindow) -> str:
        """Tell the window what the ledger counts, until the load is cancelled; returns the reason."""
        async with contextlib.aclosing(self.states()) as states:
            async for state in states:
                load = state.loads.get(load_id)
                if load is None:
                    continue
                if load.phase is LoadPhase.CANCELLED:
                    return load.explanation
                window.counted_to = max(window.counted_to, load.counted_to)
        raise AssertionError("the ledger is followed for ever")

    async def _close(self, opened: OpenedLoad, *, is_complete: bool) -> None:
        """Cancel the load, unless it is complete: then delete its results once the ledger has its end.

        The monitor counts the results for that end. If it is away, it reports the end and deletes them later.
        """
        load_id = opened.load_id
        if not is_complete:
            return await self._abandon(load_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_TIMEOUT_S), contextlib.aclosing(self.states()) as states:
                async for state in states:
                    if load_id not in state.loads or not state.loads[load_id].live:
                        return await with_retry(self._bus.delete_load, self._pool, opened.bus_name, with_results=True)
        return None

    async def _abandon(self, load_id: str) -> None:
        """Cancel the load without waiting for the reply."""
        command = CancelLoad(load_id=load_id, tenant=self.tenant, reason="its client stopped")
        await self._publish(command, fresh_message_id(command))

    async def _feed(self, opened: OpenedLoad, feed: TaskFeed, window: ResultWindow) -> int:
        """Store all tasks that the window takes, then seal the load. Returns their number.

        Raises what the inputs raise.
        """
        num_tasks, load_id = 0, opened.load_id
        while (bundle := await feed.next_bundle(await window.feedable(num_tasks))) is not None:
            await self._store(opened.bus_name, bundle, f"tasks-{load_id}-{opened.client_id}-{bundle.tasks[0][0]}")
            num_tasks += len(bundle.tasks)
        sealed = await self._seal(load_id, num_tasks)
        if isinstance(sealed, SealRejected):
            raise LoadWasCancelled(load_id, sealed.explanation)
        return num_tasks

    async def _seal(self, load_id: str, num_tasks: int) -> LoadSealed | SealRejected:
        """However long it takes: hours of results may wait for it."""
        while True:
            with contextlib.suppress(Undecided, Unavailable, MaybeStored, StorageFull):
                return await self.seal_load(load_id, num_tasks)
            await asyncio.sleep(RETRY_S)

    async def _store(self, bus_name: str, bundle: TaskBundle, message_id: str) -> None:
        """However long it takes."""
        data = encode_bundle(bundle)
        while True:
            with contextlib.suppress(StorageFull, Unavailable, MaybeStored):
                await self._bus.append(subjects.tasks(self._pool, bus_name), data, message_id=message_id)
                return
            await asyncio.sleep(RETRY_S)


# --- detached loads ------------------------------------------------------------------------------------
# Detached loads: one client sends the tasks and leaves, another one reads the stored results later.

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
        opened = await self._open(spec, load_id, code)
        feed, window = TaskFeed(inputs, spec.task_s), ResultWindow(keeps_results=True)
        feeding = asyncio.create_task(self._feed(opened, feed, window), name=f"tasks of {load_id}")
        following = asyncio.create_task(self._cancelled(load_id, window), name=f"end of {load_id}")
        measuring = asyncio.create_task(self._measure(opened, feed, window), name=f"results of {load_id}")
        holding = asyncio.create_task(self._hold_lease(opened), name=f"lease of {load_id}")
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

        Raises NotThere, also if the client that opened it still runs, LoadWasCancelled, KeysUnusable.
        """
        self.require_operator()
        bus_name = (await self._load(load_id)).bus_name
        if await with_retry(has_load_lease, self._bus, self._pool, bus_name):
            raise NotThere(
                "load_in_use",
                f"the client that opened the padding load {load_id!r} still runs and receives its results: take them "
                "there, or try again after it has ended, two minutes later if it was killed",
            )
        window, results = ResultWindow(keeps_results=True), self._bus.results(self._pool, bus_name)
        finishing = asyncio.create_task(self._finished(load_id), name=f"end of {load_id}")
        waiting = asyncio.ensure_future(anext(results))
        try:
            while not (finishing.done() and window.num_read >= finishing.result()):
                pending, limit_s = ({waiting}, MISSING_S) if finishing.done() else ({waiting, finishing}, None)
                done, _ = await asyncio.wait(pending, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise _results_gone(load_id, window.num_read, finishing.result())
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
        """Delete the results of a load that has ended, with the files of large ones. A repeat has no effect.

        Those of a load that the ledger has forgotten are left to the monitor and the executors, which delete what is
        old; on the bus, those of an older client's load are deleted.
        """
        folder, bus_name = None, load_id
        with contextlib.suppress(NotThere):
            bus_name = (await self._load(load_id)).bus_name
            folder = await self.result_folder(load_id)
        await with_retry(self._bus.delete_load, self._pool, bus_name, with_results=True)
        if folder is not None:
            delete_folder(folder)

    async def _finished(self, load_id: str) -> int:
        """Wait until the load has finished; the number of its tasks. Raises NotThere, LoadWasCancelled."""
        async with contextlib.aclosing(self.states()) as states:
            async for state in states:
                load = state.loads.get(load_id)
                if load is None:
                    raise unknown_load(load_id, self._pool, state.loads)
                if load.phase is LoadPhase.CANCELLED:
                    raise LoadWasCancelled(load_id, load.explanation)
                if load.phase is LoadPhase.FINISHED and load.num_tasks is not None:
                    return load.num_tasks
        raise AssertionError("the ledger is followed for ever")

    async def _measure(self, opened: OpenedLoad, feed: TaskFeed, window: ResultWindow) -> int:
        """Read results for their sizes and times, without end."""
        async with contextlib.aclosing(self._bus.results(self._pool, opened.bus_name)) as batches:  # pyright: ignore[reportArgumentType]
            async for batch in batches:
                for record in batch:
                    for result in window.read(record):
                        feed.measured(result.task_s)
        raise AssertionError("results are followed for ever")


def _results_gone(load_id: str, num_read: int, num_tasks: int) -> NotThere:
    return NotThere(
        "results_gone",
        f"{num_tasks - num_read} of {num_tasks} results of the padding load {load_id!r} are not stored: results are "
        "deleted once they are read, or an hour after the end of their load; map its inputs again",
    )
