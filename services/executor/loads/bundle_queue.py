"""The bundles of one padding load, as far as this node needs some."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages.envelope.codec import Undecodable
from elasticflow.shared.messages.padding_tasks import TaskBundle, decode_bundle
from elasticflow.shared.runtime.bus.contract import TASK_ACK_WAIT_S, Bus
from elasticflow.shared.runtime.bus.work_queue import WorkItem, WorkQueue
from elasticflow.shared.state.load import Load

PULL_S = 30.0
RETRY_S = 1.0
STALE_S = TASK_ACK_WAIT_S / 2


@dataclass(frozen=True, slots=True, eq=False)
class PulledBundle:
    """Until it is settled, no other node has it. pulled_at_s: by the clock of the event loop."""

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
                    queue = queue or await self._bus.tasks(self._pool, self.load.load_id)
                    await self._pull(queue)
                except ElasticFlowError as error:  # also a pool without these streams
                    self._log.warning("no bundles", load_id=self.load.load_id, error=str(error))
                    await asyncio.sleep(RETRY_S)
        finally:
            await self.give_back()
            if queue is not None:
                with contextlib.suppress(ElasticFlowError):
                    await queue.close()

    async def _pull(self, queue: WorkQueue) -> None:
        if (count := self._num_wanted() - len(self.ready)) <= 0:
            self._wanted.clear()
            return
        for item in await queue.pull(count, PULL_S):
            try:
                now_s = asyncio.get_running_loop().time()
                self.ready.append(PulledBundle(self.load, item, decode_bundle(item.data), now_s))
            except Undecodable as error:
                self._log.error("BundleDropped", load_id=self.load.load_id, problems=error.problems)
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
