"""Padding loads on idle windows, as events on a virtual clock, with the hand-out policy of the executors.

A runner starts when a window begins, or when the load on its GPU changes. Tasks run one after another. The end of a
window comes without notice: the task in progress is lost, and the tasks that are not done wait again at once.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

from elasticflow.shared.scheduling.padding.hand_out import (
    ActiveLoad,
    Bundle,
    HandOutState,
    IdleSlot,
    TaskNeeds,
    after_bundle,
    after_hand_out,
    after_opening,
    hand_out,
)
from elasticflow.simulator.padding.fairness import FairnessMeter
from elasticflow.simulator.padding.loads import PaddingLoad
from elasticflow.simulator.padding.result import LoadsResult
from elasticflow.simulator.padding.task_execution import (
    ROUNDING,
    Execution,
    executed,
    outcome_of,
    progress_of,
)
from elasticflow.simulator.padding.windows import IdleWindow


class _Kind(IntEnum):
    """The order of events at one instant."""

    BUNDLE_ENDS = 0
    WINDOW_ENDS = 1
    WINDOW_BEGINS = 2
    LOAD_OPENS = 3


@dataclass(slots=True)
class _Slot:
    """A GPU in a window. used_s: from the window's beginning until the slot's last bundle ended, a difference that
    does not lose digits on a late clock. runner_used_s: at the start of the runner."""

    window: IdleWindow
    idle_since_s: float
    used_s: float = 0.0
    running_load_id: str = ""
    runner_used_s: float = 0.0

    def used_at_s(self, now_s: float) -> float:
        return self.used_s if now_s == self.idle_since_s else now_s - self.window.start_s

    @property
    def is_over(self) -> bool:
        return self.window.length_s - self.used_s <= ROUNDING * self.window.length_s


class LoadSimulation:
    """One run. progress: of each load, by id."""

    def __init__(self, windows: Sequence[IdleWindow], loads: Sequence[PaddingLoad], seed: int = 0) -> None:
        _check_disjoint(windows)
        self._windows = windows
        self.progress = {load.load_id: progress_of(load, seed) for load in loads}
        assert len(self.progress) == len(loads), "two loads have the same id"
        self._state = HandOutState()
        self._slots: dict[str, _Slot] = {}  # by GPU, of the windows of this instant
        self._idle: set[str] = set()
        self._waiting: Counter[str] = Counter()  # tasks by tenant
        self._fairness = FairnessMeter({load.tenant: load.weight for load in loads})
        self._events: list[tuple[float, int, str, IdleWindow | Execution | None]] = []
        for window in windows:
            self._push(window.start_s, _Kind.WINDOW_BEGINS, window.gpu, window)
            self._push(window.end_s, _Kind.WINDOW_ENDS, window.gpu)
        for load in loads:
            self._push(load.opened_at_s, _Kind.LOAD_OPENS, load.load_id)

    def run(self) -> LoadsResult:
        """Execute all events."""
        while self._events:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] == now_s:
                _, kind, name, subject = heapq.heappop(self._events)
                self._apply(_Kind(kind), name, subject, now_s)
            if self._waiting.total():
                self._hand_out(now_s)
            self._fairness.backlogged((tenant for tenant, count in self._waiting.items() if count), now_s)
        return LoadsResult(
            windows=self._windows,
            outcomes=tuple(map(outcome_of, self.progress.values())),
            jain_by_minute=self._fairness.by_minute(),
        )

    def _push(self, at_s: float, kind: _Kind, name: str, subject: IdleWindow | Execution | None = None) -> None:
        heapq.heappush(self._events, (at_s, kind, name, subject))

    def _apply(self, kind: _Kind, name: str, subject: IdleWindow | Execution | None, now_s: float) -> None:
        if isinstance(subject, IdleWindow):
            self._slots[name] = _Slot(subject, now_s)
            self._idle.add(name)
        elif isinstance(subject, Execution):
            self._bundle_ended(self._slots[name], subject, now_s)
        elif kind is _Kind.WINDOW_ENDS:
            del self._slots[name]
            self._idle.discard(name)
        else:
            self._open(self.progress[name].load)

    def _open(self, load: PaddingLoad) -> None:
        opened = ActiveLoad(
            load_id=load.load_id,
            tenant=load.tenant,
            opened_at_s=load.opened_at_s,
            num_waiting=load.num_tasks,
            needs=TaskNeeds(gpu_type=load.gpu_type),
            cost=load.cost,
        )
        self._state = after_opening(self._state, opened, load.weight)
        self._waiting[load.tenant] += load.num_tasks

    def _hand_out(self, now_s: float) -> None:
        """Bundles for all idle GPUs, in the order of their names."""
        unneeded_types: set[str] = set()
        for gpu in sorted(self._idle):
            slot = self._slots[gpu]
            if slot.window.gpu_type in unneeded_types:
                continue
            used_s = slot.used_at_s(now_s)
            idle = IdleSlot(
                gpu_type=slot.window.gpu_type,
                running_load_id=slot.running_load_id,
                running_s=used_s - slot.runner_used_s,
            )
            bundle = hand_out(self._state, idle)
            if bundle is None:
                unneeded_types.add(slot.window.gpu_type)
                continue
            self._state = after_hand_out(self._state, bundle)
            self._start(slot, bundle, used_s)

    def _start(self, slot: _Slot, bundle: Bundle, used_s: float) -> None:
        progress, window = self.progress[bundle.load_id], slot.window
        tasks = tuple(progress.waiting.popleft() for _ in range(bundle.num_tasks))
        self._waiting[bundle.tenant] -= bundle.num_tasks
        self._idle.discard(window.gpu)
        if bundle.starts_runner:
            slot.running_load_id, slot.runner_used_s = bundle.load_id, used_s
        execution = executed(progress, bundle, tasks, used_s, window.length_s)
        end_s = window.end_s if execution.interrupted else min(window.start_s + execution.end_s, window.end_s)
        self._push(end_s, _Kind.BUNDLE_ENDS, window.gpu, execution)

    def _bundle_ended(self, slot: _Slot, execution: Execution, now_s: float) -> None:
        bundle, held_s = execution.bundle, execution.end_s - execution.start_s
        progress, num_done = self.progress[bundle.load_id], len(execution.done)
        for task in execution.done:
            progress.times_done[task] += 1
        undone = execution.tasks[num_done:]
        progress.waiting.extendleft(reversed(undone))
        self._waiting[bundle.tenant] += len(undone)
        progress.num_done += num_done
        progress.num_lost += execution.interrupted and held_s > 0
        progress.useful_s += execution.useful_s
        progress.given_s += held_s
        if progress.num_done == progress.load.num_tasks:
            progress.finished_at_s = now_s
        cost = replace(progress.load.cost, task_s=execution.useful_s / num_done) if num_done else None
        self._state = after_bundle(self._state, bundle, num_done=num_done, held_s=held_s, cost=cost)
        self._fairness.gave(bundle.tenant, now_s - held_s, now_s)
        slot.used_s, slot.idle_since_s = execution.end_s, now_s
        if not slot.is_over:
            self._idle.add(slot.window.gpu)


def simulate_loads(windows: Sequence[IdleWindow], loads: Sequence[PaddingLoad], *, seed: int = 0) -> LoadsResult:
    """Execute the loads in the windows. The windows of one GPU must be disjoint.

    seed: for the task seconds of loads with a spread. The same arguments give the same result.
    """
    return LoadSimulation(windows, loads, seed).run()


def _check_disjoint(windows: Sequence[IdleWindow]) -> None:
    ordered = sorted(windows, key=lambda window: (window.gpu, window.start_s))
    for earlier, later in pairwise(ordered):
        assert earlier.gpu != later.gpu or earlier.end_s <= later.start_s, f"{earlier} and {later} overlap"
