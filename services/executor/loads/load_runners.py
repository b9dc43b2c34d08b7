"""The padding loads of this node: bundles are pulled for idle GPUs, handed out by fair shares, executed and settled.

`use` is called with what the policy orders. A GPU that is no longer among the idle ones loses its runner at once; the
unfinished tasks go back.
"""

import asyncio
import itertools
from dataclasses import replace

from elasticflow.services.executor.decisions.local_events_and_actions import NO_PADDING_SLOTS, UsePaddingSlots
from elasticflow.services.executor.loads.bundle_queue import BundleQueue, BundleSettlement, PulledBundle, keep_unsettled
from elasticflow.services.executor.loads.padding_slot import RETRY_S, PaddingSlot, RunnerSettings
from elasticflow.shared.runtime.bus.contract import Bus, WorkItem
from elasticflow.shared.scheduling.padding.cost_model import TaskCost
from elasticflow.shared.scheduling.padding.hand_out import (
    ActiveLoad,
    Bundle,
    HandOutState,
    IdleSlot,
    after_bundle,
    after_closing,
    after_hand_out,
    after_opening,
    after_waiting,
    hand_out,
)
from elasticflow.shared.state.load import Load

LEAVING_TIMEOUT_S = 2.0  # of a job that waits for the end of a runner


class LoadRunners:
    """One slot for each idle GPU, one queue for each live load."""

    def __init__(self, bus: Bus, pool: str, settings: RunnerSettings) -> None:
        self._bus, self._pool, self._settings, self._log = bus, pool, settings, settings.log
        self._ordered = NO_PADDING_SLOTS
        self._news = asyncio.Event()
        self._slots: dict[int, PaddingSlot] = {}
        self._leaving: dict[int, PaddingSlot] = {}  # by GPU, the last one that a job took
        self._queues: dict[str, tuple[BundleQueue, asyncio.Task[None]]] = {}
        self._shares = HandOutState()
        self._unsettled: dict[int, WorkItem] = {}  # by sequence
        self._bundle_ids = itertools.count()
        self._tasks = asyncio.TaskGroup()

    def use(self, slots: UsePaddingSlots) -> None:
        """Use these GPUs for these loads from now on; does not block."""
        self._ordered = slots
        for gpu_index in set(self._slots).difference(slots.gpus):
            slot = self._leaving[gpu_index] = self._slots.pop(gpu_index)
            slot.leave()
        live = {load.identity for load in slots.loads}
        for slot in self._slots.values():
            if slot.load is not None and slot.load.identity not in live:
                slot.kill_runner()
        self._news.set()

    async def left(self, gpu_index: int) -> None:
        """Wait until no runner holds memory of a GPU that was taken from it, at most LEAVING_TIMEOUT_S."""
        slot = self._leaving.pop(gpu_index, None)
        if slot is not None:
            await asyncio.wait({asyncio.ensure_future(slot.runner_gone())}, timeout=LEAVING_TIMEOUT_S)

    async def run(self) -> None:
        """Carry out the orders, until cancelled. It may be called again after an error: no runner is left then."""
        self._tasks, self._shares = asyncio.TaskGroup(), HandOutState()
        self._news.set()
        try:
            await self._run()
        finally:
            for kept in (self._slots, self._queues, self._unsettled):
                kept.clear()

    async def _run(self) -> None:
        async with self._tasks:
            self._tasks.create_task(keep_unsettled(lambda: list(self._unsettled.values())), name="bundles in progress")
            while True:
                await self._news.wait()
                self._news.clear()
                await self._follow_loads()
                for gpu_index in self._ordered.gpus:
                    if gpu_index not in self._slots:
                        slot = self._slots[gpu_index] = PaddingSlot(gpu_index, self._settings)
                        self._tasks.create_task(self._serve(slot), name=f"padding on GPU {gpu_index}")

    # -- loads -------------------------------------------------------------------------------------------

    async def _follow_loads(self) -> None:
        loads = {load.load_id: load for load in self._ordered.loads}
        live = {load.identity for load in loads.values()}
        for load_id in [load_id for load_id, (queue, _) in self._queues.items() if queue.load.identity not in live]:
            _, pulling = self._queues.pop(load_id)
            self._shares = after_closing(self._shares, load_id)
            pulling.cancel()
            await asyncio.wait({pulling})
        for load_id in sorted(set(loads).difference(self._queues)):
            self._open(loads[load_id])
        if not self._ordered.gpus:
            for queue, _ in tuple(self._queues.values()):
                await queue.give_back()

    def _open(self, load: Load) -> None:
        spec = load.spec
        active = ActiveLoad(
            load_id=load.load_id,
            tenant=load.tenant,
            opened_at_s=load.opened_at_s,
            num_waiting=0,
            cost=TaskCost(task_s=spec.task_s, overhead_s=spec.overhead_s, start_stop_s=spec.start_stop_s),
        )
        self._shares = after_opening(self._shares, active, weight=self._ordered.weights.get(load.tenant, 1.0))
        queue = BundleQueue(
            self._bus, self._pool, load, num_wanted=self._num_wanted, on_pulled=self._pulled, log=self._log
        )
        pulling = self._tasks.create_task(queue.run(), name=f"bundles of {load.load_id}")
        self._queues[load.load_id] = queue, pulling
        queue.want()

    def _num_wanted(self) -> int:
        """One bundle of each load while GPUs are idle, and one for each GPU that waits."""
        return max(sum(slot.waits for slot in self._slots.values()), min(len(self._slots), 1))

    def _pulled(self) -> None:
        for slot in self._slots.values():
            slot.news.set()

    # -- slots -------------------------------------------------------------------------------------------

    async def _serve(self, slot: PaddingSlot) -> None:
        """Execute one bundle after another, until a job needs the GPU."""
        try:
            while (handed := await self._next(slot)) is not None:
                await self._serve_bundle(slot, *handed)
        finally:
            await slot.runner_gone()

    async def _next(self, slot: PaddingSlot) -> tuple[PulledBundle, Bundle] | None:
        """Wait for a bundle for this slot; None once a job needs the GPU."""
        while not slot.is_left:
            if (handed := self._hand_out(slot)) is not None:
                return handed
            slot.waits = True
            for queue, _ in self._queues.values():
                queue.want()
            await slot.news.wait()
            slot.news.clear()
            slot.waits = False
        return None

    def _hand_out(self, slot: PaddingSlot) -> tuple[PulledBundle, Bundle] | None:
        for queue, _ in self._queues.values():
            self._shares = after_waiting(self._shares, queue.load.load_id, queue.num_tasks())
        running_load_id = slot.load.load_id if slot.load is not None else ""
        bundle = hand_out(self._shares, IdleSlot(running_load_id=running_load_id, running_s=slot.running_s))
        if bundle is None:
            return None
        queue, _ = self._queues[bundle.load_id]
        pulled = queue.ready.popleft()
        queue.want()
        bundle = replace(bundle, num_tasks=len(pulled.bundle.tasks))
        self._shares = after_hand_out(self._shares, bundle)
        return pulled, bundle

    async def _serve_bundle(self, slot: PaddingSlot, pulled: PulledBundle, bundle: Bundle) -> None:
        """Execute it; its results are stored while the next one is executed."""
        self._unsettled[pulled.item.sequence] = pulled.item
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        settlement = BundleSettlement(self._bus, self._pool, self._settings.node_id, pulled)
        try:
            unfinished, cost = await slot.execute(next(self._bundle_ids), pulled, settlement)
        except Exception:  # costs these tasks a while, and not the executor its workers
            self._log.exception("BundleNotExecuted", load_id=bundle.load_id)
            unfinished, cost = [index for index, _ in pulled.bundle.tasks], None
            await asyncio.sleep(RETRY_S)
        held_s = loop.time() - began_s
        self._shares = after_bundle(self._shares, bundle, num_done=bundle.num_tasks, held_s=held_s, cost=cost)
        if slot.settling is not None:
            await slot.settling
        slot.settling = self._tasks.create_task(self._settle(pulled, settlement, unfinished))
        await slot.pause()

    async def _settle(self, pulled: PulledBundle, settlement: BundleSettlement, unfinished: list[int]) -> None:
        """Tasks of a load that has ended do not go back. Without contact, nothing is known of any load."""
        has_ended = self._ordered.loads and all(load.identity != pulled.load.identity for load in self._ordered.loads)
        try:
            await (settlement.drop() if has_ended else settlement.settle(unfinished))
        except Exception:  # the server delivers the bundle again
            self._log.exception("BundleNotSettled", load_id=pulled.load.load_id)
        finally:
            self._unsettled.pop(pulled.item.sequence, None)
