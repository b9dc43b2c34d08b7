"""What becomes of the tasks of a bundle: their results are stored, or they go back to be tried again.

The bundle is acknowledged last. If this executor dies before, another one executes all of its tasks again, and the
first result of each task stays.
"""

import contextlib
from collections.abc import Sequence

from elasticflow.services.executor.loads.bundle_queue import PulledBundle
from elasticflow.shared.errors import ElasticFlowError, StorageFull
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.padding_tasks import (
    TaskBundle,
    TaskResult,
    encode_bundle,
    encode_results,
    split_into_batches,
)
from elasticflow.shared.messages.worker_protocol.task_running import TaskDone
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import fresh_id

RETRY_S = 1.0  # until the tasks of a bundle that could not be settled are executed again


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
        load_id = self._pulled.load.load_id
        for batch in split_into_batches(results):
            subject = subjects.results(self._pool, load_id, batch.first, batch.last)
            await self._bus.append(subject, encode_results(batch), message_id=fresh_id())

    async def _try_again(self, failure: TaskResult) -> None:
        """Beside a full stream the failure is the result: else tasks that fail would fill the stream for ever."""
        try:
            await self._append_again([failure.index], self._num_attempts)
        except StorageFull:
            await self._store([failure])

    async def _append_again(self, indices: Sequence[int], num_failures: int) -> None:
        bundle = TaskBundle(tasks=tuple((index, self._inputs[index]) for index in indices), num_failures=num_failures)
        tasks = subjects.tasks(self._pool, self._pulled.load.load_id)
        await self._bus.append(tasks, encode_bundle(bundle), message_id=fresh_id())
