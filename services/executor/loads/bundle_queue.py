"""The bundles of one padding load, as far as this node needs some."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from elasticflow.shared.errors import ElasticFlowError, StorageFull
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.padding_tasks import (
    TaskBundle,
    TaskResult,
    decode_bundle,
    encode_bundle,
    encode_results,
    split_into_batches,
)
from elasticflow.shared.messages.worker_protocol.task_running import TaskDone
from elasticflow.shared.runtime.bus.contract import TASK_ACK_WAIT_S, Bus, WorkItem, WorkQueue
from elasticflow.shared.runtime.process.clock import SystemClock, fresh_id
from elasticflow.shared.runtime.process.logs import RefusalLog
from elasticflow.shared.state.load import Load

PULL_S = 30.0
RETRY_S = 1.0
STALE_S = TASK_ACK_WAIT_S / 2


@dataclass(frozen=True, slots=True, eq=False)
class PulledBundle:
    """A bundle that no other node has until it is settled. pulled_at_s: by the clock of the event loop."""

    load: Load
    item: WorkItem
    bundle: TaskBundle
    pulled_at_s: float = 0.0


class BundleQueue:
    """num_wanted: how many bundles free GPUs of this node wait for. on_pulled: called with each bundle."""

    def __init__(
        self, bus: Bus, pool: str, load: Load, *, num_wanted: Callable[[], int], on_pulled: Callable[[], None], log: Any
    ) -> None:
        self._bus, self._pool, self.load = bus, pool, load
        self._num_wanted, self._on_pulled, self._log = num_wanted, on_pulled, log
        self.ready: deque[PulledBundle] = deque()
        self._wanted = asyncio.Event()
        self._clock, self._refusals = SystemClock(), RefusalLog(log.error)

    def want(self) -> None:
        """GPUs wait for bundles."""
        self._wanted.set()

    async def run(self) -> None:
        """Pull while bundles are wanted, until cancelled; then return what was pulled."""
        queue: WorkQueue | None = None
        try:
            while True:
                await self._wanted.wait()
                try:
                    queue = queue or await self._bus.tasks(self._pool, self.load.bus_name)
                    await self._pull(queue)
                except ElasticFlowError as error:  # also a pool without these streams
                    self._log.warning("no bundles", load_id=self.load.load_id, error=str(error))
                    await asyncio.sleep(RETRY_S)
        finally:
            self._refusals.close()
            await self.give_back()
            if queue is not None:
                with contextlib.suppress(ElasticFlowError):
                    await queue.close()

    async def _pull(self, queue: WorkQueue) -> None:
        if (count := self._num_wanted() - len(self.ready)) <= 0:
            self._wanted.clear()
            return
        self._refusals.write_counts(self._clock.now_s())
        for item in await queue.pull(count, PULL_S):
            try:
                now_s = asyncio.get_running_loop().time()
                self.ready.append(PulledBundle(self.load, item, decode_bundle(item.data), now_s))
            except Undecodable as error:
                load_id, tenant = self.load.load_id, self.load.tenant
                at_s = self._clock.now_s()
                self._refusals.write("BundleDropped", tenant, at_s, load_id=load_id, problems=error.problems)
                await item.term()
            else:
                self._on_pulled()
        if not self._num_wanted():
            await self.give_back()

    def num_tasks(self) -> int:
        """Tasks that wait here. Forgets bundles that have waited so long that the server gives them to others soon."""
        now_s = asyncio.get_running_loop().time()
        while self.ready and now_s - self.ready[0].pulled_at_s > STALE_S:
            self.ready.popleft()
        return sum(len(pulled.bundle.tasks) for pulled in self.ready)

    async def give_back(self) -> None:
        """Another node may have what waits here."""
        while self.ready:
            with contextlib.suppress(ElasticFlowError):
                await self.ready.popleft().item.nak()


async def keep_unsettled(items: Callable[[], list[WorkItem]]) -> None:
    """Tell the server that these are still in progress, until cancelled."""
    while True:
        await asyncio.sleep(TASK_ACK_WAIT_S / 3)
        for item in items():
            with contextlib.suppress(ElasticFlowError):
                await item.in_progress()


# --- bundle settlement ---------------------------------------------------------------------------------
# What becomes of the tasks of a bundle: their results are stored, or they go back to be tried again.
#
# The bundle is acknowledged last. If this executor dies before, another one executes all of its tasks again, and the
# first result of each task stays.


class BundleSettlement:
    """Collects the outcomes of one bundle; `settle` makes them durable."""

    def __init__(self, bus: Bus, pool: str, node_id: str, pulled: PulledBundle) -> None:
        self._bus, self._pool, self._node_id, self._pulled = bus, pool, node_id, pulled
        self._inputs = dict(pulled.bundle.tasks)
        self._results = list[TaskResult]()
        self._failed = list[TaskResult]()  # to be tried again
        self._num_attempts = pulled.bundle.num_failures + 1

    def done(self, outcome: TaskDone) -> None:
        """A task has ended well."""
        done = TaskResult(
            index=outcome.index,
            value=None if outcome.file_digest else outcome.result,
            file_digest=outcome.file_digest,
            attempts=self._num_attempts,
            task_s=outcome.task_s,
            node_id=self._node_id,
        )
        self._results.append(done)

    def failed(self, index: int, error: str, traceback: str = "", task_s: float = 0.0) -> None:
        """An attempt has failed. After the last one allowed, the failure is the result."""
        failure = TaskResult(
            index=index,
            error=error or "it failed without a message",
            traceback=traceback,
            attempts=self._num_attempts,
            task_s=task_s,
            node_id=self._node_id,
        )
        is_last = self._num_attempts >= self._pulled.load.spec.max_attempts
        (self._results if is_last else self._failed).append(failure)

    async def settle(self, unfinished: Sequence[int] = ()) -> None:
        """Store the results, return the tasks to try again, then acknowledge. unfinished: preempted, no failure.

        If the server cannot be reached, all tasks go back.
        """
        item = self._pulled.item
        try:
            await self._store(self._results)
            if unfinished:
                await self._append_again(unfinished, self._pulled.bundle.num_failures)
            for failure in self._failed:  # each alone, so that a task that ends its runner takes no other along
                await self._try_again(failure)
            await item.ack()
        except ElasticFlowError:
            with contextlib.suppress(ElasticFlowError):
                await item.nak(RETRY_S)

    async def drop(self) -> None:
        """The load has ended, so its results are not stored."""
        with contextlib.suppress(ElasticFlowError):
            await self._pulled.item.ack()

    async def _store(self, results: Sequence[TaskResult]) -> None:
        load = self._pulled.load.bus_name
        for batch in split_into_batches(results):
            subject = subjects.results(self._pool, load, batch.first, batch.last)
            await self._bus.append(subject, encode_results(batch), message_id=fresh_id())

    async def _try_again(self, failure: TaskResult) -> None:
        """Append the task again. If the stream is full, the failure is the result.

        Otherwise tasks that fail would fill the stream forever.
        """
        try:
            await self._append_again([failure.index], self._num_attempts)
        except StorageFull:
            await self._store([failure])

    async def _append_again(self, indices: Sequence[int], num_failures: int) -> None:
        bundle = TaskBundle(tasks=tuple((index, self._inputs[index]) for index in indices), num_failures=num_failures)
        tasks = subjects.tasks(self._pool, self._pulled.load.bus_name)
        await self._bus.append(tasks, encode_bundle(bundle), message_id=fresh_id())
