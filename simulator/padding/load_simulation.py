"""Padding loads on idle windows, as events of the same engine as a trace, with the hand-out policy of the executors.

A runner starts when a window begins, or when the load on its GPU changes. Tasks run one after another. The end of a
window comes without notice: the task in progress is lost, and the tasks that are not done wait again at once.
"""

import math
import zlib
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from elasticflow.shared.scheduling.padding import cost_model
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
from elasticflow.simulator.padding.windows_and_loads import IdleWindow, PaddingLoad
from elasticflow.simulator.virtual_time import Engine

# --- fairness ------------------------------------------------------------------------------------------
# Jain's fairness index of each minute, among the tenants that had waiting tasks during the whole minute.
#
# Source of the index: Jain, Chiu and Hawe, DEC-TR-301 (1984): (sum x)^2 / (n sum x^2); 1 if all n values are equal.

MINUTE_S = 60.0
_ROUNDING_S = 1e-6


def jain_index(values: Sequence[float]) -> float:
    """The index: from 1 / n for one positive value to 1 for equal ones; 1 if all are 0."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0


class FairnessMeter:
    """The GPU-seconds of each tenant in each minute, and when tenants had no waiting task.

    `backlogged` is called in order of time, `gave` in any order.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._given_s: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._idle_from_s = dict.fromkeys(weights, float("-inf"))  # of the tenants that have no waiting task now
        self._idle: dict[str, list[tuple[float, float]]] = {tenant: [] for tenant in weights}

    def gave(self, tenant: str, start_s: float, end_s: float) -> None:
        """A tenant held a GPU between these times."""
        minute = int(start_s // MINUTE_S)
        while minute * MINUTE_S < end_s:
            held_s = min(end_s, (minute + 1) * MINUTE_S) - max(start_s, minute * MINUTE_S)
            if held_s > _ROUNDING_S:  # a minute of rounding errors would have a poor index
                self._given_s[minute][tenant] += held_s
            minute += 1

    def backlogged(self, tenants: Iterable[str], now_s: float) -> None:
        """These tenants, and no others, have waiting tasks from now on."""
        waiting = set(tenants)
        for tenant in waiting & self._idle_from_s.keys():
            since_s = self._idle_from_s.pop(tenant)
            if since_s < now_s:
                self._idle[tenant].append((since_s, now_s))
        for tenant in self._weights.keys() - waiting - self._idle_from_s.keys():
            self._idle_from_s[tenant] = now_s

    def by_minute(self) -> Mapping[int, float]:
        """The index of the GPU-seconds over weights, for each minute with two or more tenants to compare."""
        found: dict[int, float] = {}
        for minute, given_s in sorted(self._given_s.items()):
            tenants = [tenant for tenant in sorted(self._weights) if self._waited_through(tenant, minute)]
            if len(tenants) > 1:
                found[minute] = jain_index([given_s[tenant] / self._weights[tenant] for tenant in tenants])
        return found

    def _waited_through(self, tenant: str, minute: int) -> bool:
        start_s, end_s = minute * MINUTE_S, (minute + 1) * MINUTE_S
        if self._idle_from_s.get(tenant, end_s) < end_s:
            return False
        intervals = self._idle[tenant]
        before = bisect_left(intervals, (end_s,)) - 1  # the last one that begins before the minute ends
        return before < 0 or intervals[before][1] <= start_s


# --- What a simulation of padding loads yields, for each load and for all of them ----------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome:
    """What became of one load.

    tasks_lost: tasks that a preemption interrupted; each was executed again, or waits.
    useful_s: of the tasks that are done. given_s: GPU-seconds with its runner. finished_at_s: None if tasks remain.
    """

    load: PaddingLoad
    tasks_done: int
    tasks_lost: int
    useful_s: float
    given_s: float
    finished_at_s: float | None

    @property
    def useful_share(self) -> float | None:
        """The useful share of the time given to the load (theta), as measured; None if it got none."""
        return self.useful_s / self.given_s if self.given_s else None


@dataclass(frozen=True, kw_only=True)
class LoadsResult:
    """windows, outcomes: all of them, in the order given. jain_by_minute: see `fairness`."""

    windows: Sequence[IdleWindow]
    outcomes: Sequence[LoadOutcome]
    jain_by_minute: Mapping[int, float]

    @cached_property
    def idle_gpu_s(self) -> float:
        return sum(window.length_s for window in self.windows)

    @cached_property
    def useful_s(self) -> float:
        return sum(outcome.useful_s for outcome in self.outcomes)

    @cached_property
    def given_s(self) -> float:
        return sum(outcome.given_s for outcome in self.outcomes)

    @cached_property
    def whole_task_s(self) -> float:
        """The physical limit: useful seconds if each window ran tasks of its best load, and tasks never ran out."""
        return sum(
            max(self._whole_task_s(outcome.load, window) for outcome in self.outcomes) for window in self.windows
        )

    @property
    def finished_at_s(self) -> float | None:
        """When the last task was done; None if a load is unfinished."""
        ends_s = [outcome.finished_at_s for outcome in self.outcomes if outcome.finished_at_s is not None]
        return max(ends_s) if len(ends_s) == len(self.outcomes) else None

    def predicted_useful_share(self, load: PaddingLoad) -> float | None:
        """The share by the cost model, for this load alone in all windows that it may use; None if there are none."""
        usable_s = [seconds for window in self.windows if (seconds := load.usable_s(window)) > 0]
        return cost_model.useful_share(usable_s, load.cost) if usable_s else None

    def numbers(self) -> Mapping[str, object]:
        """The published numbers of all loads together, by name."""
        jain = self.jain_by_minute.values()
        return {
            "loads": len(self.outcomes),
            "windows": len(self.windows),
            "gpus": len({window.gpu for window in self.windows}),
            "tasks": sum(outcome.load.num_tasks for outcome in self.outcomes),
            "tasks_done": sum(outcome.tasks_done for outcome in self.outcomes),
            "tasks_lost": sum(outcome.tasks_lost for outcome in self.outcomes),
            "finished_at_s": self.finished_at_s,
            "idle_gpu_s": self.idle_gpu_s,
            "given_gpu_s": self.given_s,
            "useful_gpu_s": self.useful_s,
            "useful_share": self.useful_s / self.given_s if self.given_s else None,
            "useful_share_of_idle": self.useful_s / self.idle_gpu_s,
            "useful_share_of_whole_tasks": self.useful_s / self.whole_task_s if self.whole_task_s else None,
            "jain_index_mean": sum(jain) / len(jain) if jain else None,
            "jain_index_lowest": min(jain, default=None),
        }

    def load_numbers(self, outcome: LoadOutcome) -> Mapping[str, object]:
        """The published numbers of one load, by name."""
        return {
            "load_id": outcome.load.load_id,
            "tenant": outcome.load.tenant,
            "tasks": outcome.load.num_tasks,
            "tasks_done": outcome.tasks_done,
            "tasks_lost": outcome.tasks_lost,
            "finished_at_s": outcome.finished_at_s,
            "given_gpu_s": outcome.given_s,
            "useful_gpu_s": outcome.useful_s,
            "useful_share": outcome.useful_share,
            "useful_share_predicted": self.predicted_useful_share(outcome.load),
        }

    def _whole_task_s(self, load: PaddingLoad, window: IdleWindow) -> float:
        usable_s = load.usable_s(window)
        return cost_model.whole_tasks(usable_s, load.cost) * load.cost.task_s if usable_s > 0 else 0.0


# --- task execution ------------------------------------------------------------------------------------
# The tasks of one load in a simulation: which wait, how long they take, and what a bundle of them does in a window.

ROUNDING = 1e-9  # of a window: a task that ends with its window is done, also after rounding


@dataclass(frozen=True, slots=True)
class Execution:
    """What a bundle will have done when it ends. start_s, end_s: seconds since the window began."""

    bundle: Bundle
    tasks: tuple[int, ...]
    done: tuple[int, ...]
    useful_s: float
    start_s: float
    end_s: float
    interrupted: bool


@dataclass(slots=True)
class LoadProgress:
    """The tasks of one load, by number."""

    load: PaddingLoad
    task_s: Sequence[float] | None  # of each task; None if they are equal
    waiting: deque[int]
    times_done: bytearray
    num_done: int = 0
    num_lost: int = 0
    useful_s: float = 0.0
    given_s: float = 0.0
    finished_at_s: float | None = None

    def seconds(self, task: int) -> float:
        return self.load.cost.task_s if self.task_s is None else self.task_s[task]


def executed(
    progress: LoadProgress, bundle: Bundle, tasks: tuple[int, ...], used_s: float, length_s: float
) -> Execution:
    """Run the tasks one after another, until the window ends."""
    cost, most_s = progress.load.cost, length_s * (1 + ROUNDING)
    at_s, useful_s, num_done = used_s + (cost.start_stop_s if bundle.starts_runner else 0.0), 0.0, 0
    for task in tasks:
        task_s = progress.seconds(task)
        if at_s + task_s + cost.overhead_s > most_s:
            break
        at_s, useful_s, num_done = at_s + task_s + cost.overhead_s, useful_s + task_s, num_done + 1
    interrupted = num_done < len(tasks)
    return Execution(
        bundle=bundle,
        tasks=tasks,
        done=tasks[:num_done],
        useful_s=useful_s,
        start_s=used_s,
        end_s=length_s if interrupted else min(at_s, length_s),
        interrupted=interrupted and length_s - at_s > length_s * ROUNDING,
    )


def progress_of(load: PaddingLoad, seed: int) -> LoadProgress:
    task_s = None
    if load.spread:
        rng = np.random.default_rng((seed, zlib.crc32(load.load_id.encode())))
        task_s = (load.cost.task_s * rng.lognormal(-(load.spread**2) / 2, load.spread, load.num_tasks)).tolist()
    return LoadProgress(load, task_s, deque(range(load.num_tasks)), bytearray(load.num_tasks))


def outcome_of(progress: LoadProgress) -> LoadOutcome:
    return LoadOutcome(
        load=progress.load,
        tasks_done=progress.num_done,
        tasks_lost=progress.num_lost,
        useful_s=progress.useful_s,
        given_s=progress.given_s,
        finished_at_s=progress.finished_at_s,
    )


# --- load simulation -----------------------------------------------------------------------------------


class _Kind(IntEnum):
    """The order of events at one instant."""

    BUNDLE_ENDS = 0
    WINDOW_ENDS = 1
    WINDOW_BEGINS = 2
    LOAD_OPENS = 3
    GPUS_ARE_HANDED_OUT = 4


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
        self._engine = Engine(-math.inf)
        self._hands_out = False
        for window in windows:
            self._at(window.start_s, _Kind.WINDOW_BEGINS, window.gpu, partial(self._begin, window))
            self._at(window.end_s, _Kind.WINDOW_ENDS, window.gpu, partial(self._end, window))
        for load in loads:
            self._at(load.opened_at_s, _Kind.LOAD_OPENS, load.load_id, partial(self._open, load))

    def run(self) -> LoadsResult:
        """Execute all events."""
        self._engine.run(math.inf)
        return LoadsResult(
            windows=self._windows,
            outcomes=tuple(map(outcome_of, self.progress.values())),
            jain_by_minute=self._fairness.by_minute(),
        )

    def _at(self, at_s: float, kind: _Kind, name: str, event: Callable[[], None]) -> None:
        """At at_s, let the event happen; after all events of its instant, idle GPUs get bundles."""

        def happen() -> None:
            event()
            if not self._hands_out:
                self._hands_out = True
                self._engine.at(self._engine.now_s, self._settle, rank=(_Kind.GPUS_ARE_HANDED_OUT, ""))

        self._engine.at(at_s, happen, rank=(kind, name))

    def _settle(self) -> None:
        self._hands_out = False
        if self._waiting.total():
            self._hand_out(self._engine.now_s)
        waiting = (tenant for tenant, count in self._waiting.items() if count)
        self._fairness.backlogged(waiting, self._engine.now_s)

    def _begin(self, window: IdleWindow) -> None:
        self._slots[window.gpu] = _Slot(window, self._engine.now_s)
        self._idle.add(window.gpu)

    def _end(self, window: IdleWindow) -> None:
        del self._slots[window.gpu]
        self._idle.discard(window.gpu)

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
        self._at(end_s, _Kind.BUNDLE_ENDS, window.gpu, partial(self._bundle_ended, slot, execution))

    def _bundle_ended(self, slot: _Slot, execution: Execution) -> None:
        bundle, held_s, now_s = execution.bundle, execution.end_s - execution.start_s, self._engine.now_s
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
