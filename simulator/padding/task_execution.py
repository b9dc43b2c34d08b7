"""The tasks of one load in a simulation: which wait, how long they take, and what a bundle of them does in a window."""

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elasticflow.shared.scheduling.padding.hand_out import Bundle
from elasticflow.simulator.padding.loads import PaddingLoad
from elasticflow.simulator.padding.result import LoadOutcome

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
class Progress:
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


def executed(progress: Progress, bundle: Bundle, tasks: tuple[int, ...], used_s: float, length_s: float) -> Execution:
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


def progress_of(load: PaddingLoad, seed: int) -> Progress:
    task_s = None
    if load.spread:
        rng = np.random.default_rng((seed, zlib.crc32(load.load_id.encode())))
        task_s = (load.cost.task_s * rng.lognormal(-(load.spread**2) / 2, load.spread, load.num_tasks)).tolist()
    return Progress(load, task_s, deque(range(load.num_tasks)), bytearray(load.num_tasks))


def outcome_of(progress: Progress) -> LoadOutcome:
    return LoadOutcome(
        load=progress.load,
        tasks_done=progress.num_done,
        tasks_lost=progress.num_lost,
        useful_s=progress.useful_s,
        given_s=progress.given_s,
        finished_at_s=progress.finished_at_s,
    )
