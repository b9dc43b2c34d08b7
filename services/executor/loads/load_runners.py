"""The runners of padding loads on this node: one on each idle GPU, as long as there is something to execute.

`use` is called with what the policy orders. A GPU that is no longer among the idle ones loses its runner at once; the
unfinished tasks go back.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from elasticflow.services.executor.decisions.local_events_and_actions import UsePaddingSlots
from elasticflow.services.executor.loads.bundle_queue import BundleQueue, PulledBundle, keep_unsettled
from elasticflow.services.executor.loads.bundle_settlement import BundleSettlement
from elasticflow.services.executor.processes.bundle_outcomes import RunnerEnded
from elasticflow.services.executor.processes.code_archive import CodeArchive, CodeUnusable
from elasticflow.services.executor.processes.forked_process import ForkedProcess
from elasticflow.services.executor.processes.task_runner import TaskRunner
from elasticflow.shared.errors import ElasticFlowError, Retry
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.task_running import RunTasks, TaskDone, TaskFailed
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.work_queue import WorkItem
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

RETRY_S = 1.0  # after a runner that could not be started
LONGEST_PAUSE_S = 30.0  # of a GPU on which no runner starts
LEAVING_TIMEOUT_S = 2.0  # of a job that waits for the end of a runner
SHORTEST_TASK_S = 1e-6


@dataclass(eq=False)
class _Slot:
    """An idle GPU of this node. load: of its runner."""

    gpu_index: int
    runner: TaskRunner | None = None
    load: Load | None = None
    runner_since_s: float = 0.0
    is_left: bool = False
    waits: bool = False
    settling: asyncio.Task[None] | None = None
    num_bad_starts: int = 0  # in a row
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def leave(self) -> None:
        """A job needs the GPU: end the runner now."""
        self.is_left = True
        self.news.set()
        if self.runner is not None:
            self.runner.kill()


class LoadRunners:
    """fork: a process of the fork server, `Launcher.fork`. logs: the folder for the output of tasks."""

    def __init__(
        self,
        bus: Bus,
        pool: str,
        *,
        node_id: str,
        device: Literal["cpu", "cuda"],
        cpu_share: float,
        code: CodeArchive,
        fork: Callable[[], Awaitable[ForkedProcess]],
        logs: Path,
        log: Any,
    ) -> None:
        self._bus, self._pool, self._node_id = bus, pool, node_id
        self._device: Literal["cpu", "cuda"] = device
        self._cpu_share = cpu_share if device == "cpu" else 1.0
        self._code, self._fork, self._logs, self._log = code, fork, logs, log
        self._ordered = UsePaddingSlots()
        self._news = asyncio.Event()
        self._slots: dict[int, _Slot] = {}
        self._leaving: dict[int, _Slot] = {}  # by GPU, the last one that a job took
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
        if not slots.gpus:
            for queue, _ in self._queues.values():
                self._tasks.create_task(queue.give_back())
        live = {load.load_id for load in slots.loads}
        for slot in self._slots.values():
            if slot.load is not None and slot.load.load_id not in live and slot.runner is not None:
                slot.runner.kill()
        self._news.set()

    async def left(self, gpu_index: int) -> None:
        """Wait until no runner holds memory of a GPU that was taken from it, at most LEAVING_TIMEOUT_S."""
        slot = self._leaving.pop(gpu_index, None)
        if slot is not None and slot.runner is not None:
            await asyncio.wait({asyncio.ensure_future(slot.runner.ended())}, timeout=LEAVING_TIMEOUT_S)

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
                        slot = self._slots[gpu_index] = _Slot(gpu_index)
                        self._tasks.create_task(self._serve(slot), name=f"padding on GPU {gpu_index}")

    # -- loads -------------------------------------------------------------------------------------------

    async def _follow_loads(self) -> None:
        loads = {load.load_id: load for load in self._ordered.loads}
        for load_id in set(self._queues).difference(loads):
            _, pulling = self._queues.pop(load_id)
            self._shares = after_closing(self._shares, load_id)
            pulling.cancel()
            await asyncio.wait({pulling})
        for load_id in sorted(set(loads).difference(self._queues)):
            self._open(loads[load_id])

    def _open(self, load: Load) -> None:
        spec = load.spec
        cost = TaskCost(task_s=spec.task_s, overhead_s=spec.overhead_s, start_stop_s=spec.start_stop_s)
        active = ActiveLoad(
            load_id=load.load_id, tenant=load.tenant, opened_at_s=load.opened_at_s, num_waiting=0, cost=cost
        )
        self._shares = after_opening(self._shares, active, weight=1.0)
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

    async def _serve(self, slot: _Slot) -> None:
        """Execute one bundle after another, until a job needs the GPU."""
        try:
            while (handed := await self._next(slot)) is not None:
                await self._serve_bundle(slot, *handed)
        finally:
            if slot.runner is not None:
                await slot.runner.preempt()

    async def _serve_bundle(self, slot: _Slot, pulled: PulledBundle, bundle: Bundle) -> None:
        """Execute it; its results are stored while the next one is executed."""
        self._unsettled[pulled.item.sequence] = pulled.item
        began_s, settlement = self._now_s(), BundleSettlement(self._bus, self._pool, self._node_id, pulled)
        try:
            unfinished, cost = await self._execute(slot, pulled, settlement)
        except Exception:  # costs these tasks a while, and not the executor its workers
            self._log.exception("BundleNotExecuted", load_id=bundle.load_id)
            unfinished, cost = [index for index, _ in pulled.bundle.tasks], None
            await asyncio.sleep(RETRY_S)
        held_s = self._now_s() - began_s
        self._shares = after_bundle(self._shares, bundle, num_done=bundle.num_tasks, held_s=held_s, cost=cost)
        if slot.settling is not None:
            await slot.settling
        slot.settling = self._tasks.create_task(self._settle(pulled, settlement, unfinished))
        if slot.num_bad_starts:
            await asyncio.sleep(min(RETRY_S * 2**slot.num_bad_starts, LONGEST_PAUSE_S))

    async def _settle(self, pulled: PulledBundle, settlement: BundleSettlement, unfinished: list[int]) -> None:
        is_live = any(load.load_id == pulled.load.load_id for load in self._ordered.loads)
        try:
            await (settlement.settle(unfinished) if is_live or not self._ordered.loads else settlement.drop())
        except Exception:  # the server delivers the bundle again
            self._log.exception("BundleNotSettled", load_id=pulled.load.load_id)
        finally:
            self._unsettled.pop(pulled.item.sequence, None)

    async def _next(self, slot: _Slot) -> tuple[PulledBundle, Bundle] | None:
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

    def _hand_out(self, slot: _Slot) -> tuple[PulledBundle, Bundle] | None:
        for queue, _ in self._queues.values():
            for stale in queue.take_stale(self._now_s()):
                self._tasks.create_task(_give_back(stale))
            num_waiting = sum(len(pulled.bundle.tasks) for pulled in queue.ready)
            self._shares = after_waiting(self._shares, queue.load.load_id, num_waiting)
        running_s = self._now_s() - slot.runner_since_s if slot.load is not None else 0.0
        running_load_id = slot.load.load_id if slot.load is not None else ""
        bundle = hand_out(self._shares, IdleSlot(running_load_id=running_load_id, running_s=running_s))
        if bundle is None:
            return None
        queue, _ = self._queues[bundle.load_id]
        pulled = queue.ready.popleft()
        queue.want()
        bundle = replace(bundle, num_tasks=len(pulled.bundle.tasks))
        self._shares = after_hand_out(self._shares, bundle)
        return pulled, bundle

    async def _execute(
        self, slot: _Slot, pulled: PulledBundle, settlement: BundleSettlement
    ) -> tuple[list[int], TaskCost | None]:
        """The tasks that go back, and the mean seconds of those that are done; None if none is."""
        began_s, num_done, useful_s, unfinished = self._now_s(), 0, 0.0, list[int]()
        try:
            runner = await self._runner_for(slot, pulled.load)
        except CodeUnusable as error:
            for index, _ in pulled.bundle.tasks:
                settlement.failed(index, str(error))
            return [], None
        except Retry as error:
            self._log.warning("RunnerNotStarted", load_id=pulled.load.load_id, error=str(error))
            await asyncio.sleep(RETRY_S)
            return [index for index, _ in pulled.bundle.tasks], None
        async for outcome in runner.run(next(self._bundle_ids), pulled.bundle.tasks):
            match outcome:
                case TaskDone(index=index, result=result, task_s=task_s):
                    slot.num_bad_starts = 0
                    settlement.done(index, result, task_s)
                    num_done, useful_s = num_done + 1, useful_s + task_s
                case TaskFailed(index=index, error=error, traceback=traceback, task_s=task_s):
                    settlement.failed(index, error, traceback, task_s)
                case RunnerEnded():
                    unfinished = self._runner_ended(slot, runner, outcome, settlement)
        if not num_done:
            return unfinished, None
        overhead_s = max(self._now_s() - began_s - useful_s, 0.0) / num_done
        task_s = max(useful_s / num_done, SHORTEST_TASK_S)
        return unfinished, TaskCost(task_s=task_s, overhead_s=overhead_s, start_stop_s=0.0)

    def _runner_ended(
        self, slot: _Slot, runner: TaskRunner, ended: RunnerEnded, settlement: BundleSettlement
    ) -> list[int]:
        """The tasks that go back without a failure."""
        slot.runner = slot.load = None
        unfinished = [key.index for key in ended.unfinished]
        self._log.info("RunnerEnded", gpu_index=slot.gpu_index, cause=ended.cause, error=ended.error)
        if ended.cause in ("preempted", "ended", "task timed out"):
            return unfinished
        if ended.exited.code == ExitCode.DEVICE_UNUSABLE:  # no fault of the tasks: another GPU may do
            slot.num_bad_starts += 1
            return unfinished
        if not runner.was_ready:
            slot.num_bad_starts += 1
            for index in unfinished:
                settlement.failed(index, ended.error or _how_it_ended(ended), ended.traceback)
            return []
        if ended.under_way is not None and ended.under_way.index in unfinished:
            unfinished.remove(ended.under_way.index)
            settlement.failed(ended.under_way.index, _how_it_ended(ended))
        return unfinished

    async def _runner_for(self, slot: _Slot, load: Load) -> TaskRunner:
        """The runner of this load on this slot; one of another load ends first. Raises CodeUnusable, LaunchFailed."""
        if slot.runner is not None and slot.load is not None and slot.load.load_id == load.load_id:
            return slot.runner
        if slot.runner is not None:
            await slot.runner.preempt()
            slot.runner = None
        code_path = await self._code.folder(load.spec.code_digest)
        order = RunTasks(
            load_id=load.load_id,
            function=load.spec.task_function,
            log_file=str(self._logs / load.load_id / f"{self._node_id}-{slot.gpu_index}.log"),
            code_path=code_path,
            device=self._device,
            gpu_index=slot.gpu_index,
            cpu_share=self._cpu_share,
            memory_limit_bytes=load.spec.memory_bytes,
        )
        slot.runner = await TaskRunner.start(self._fork, order, task_timeout_s=load.spec.task_timeout_s)
        slot.load, slot.runner_since_s = load, self._now_s()
        if slot.is_left:  # while it started
            slot.runner.kill()
        return slot.runner

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


async def _give_back(pulled: PulledBundle) -> None:
    with contextlib.suppress(ElasticFlowError):
        await pulled.item.nak()


def _how_it_ended(ended: RunnerEnded) -> str:
    if ended.error:
        return f"its runner was ended: {ended.error}"
    if ended.exited.signal is not None:
        return f"it ended its runner with signal {ended.exited.signal}"
    return f"it ended its runner with exit code {ended.exited.code}"
