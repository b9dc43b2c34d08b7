"""Who of the workers is slower than the others, step after step. Pure.

Compared are the times that each took for its own part of a step, up to where it waits for the others, for as many
samples. What makes all slow says nothing, nor what makes one slow and then another, as on a machine that is busy.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FACTOR = 1.5  # times the median of the others, and
DEVIATIONS = 5.0  # so many of their standard deviations above it, as their median deviation tells them
STEPS, LASTING_S = 10, 10.0  # in a row, and for so long
TELL_EVERY_S = 60.0
_SIGMA = 1.4826  # standard deviations in a median absolute deviation, of a normal distribution


@dataclass(frozen=True, slots=True)
class Straggler:
    """slowdown: its time by the median of the others'."""

    rank: int
    slowdown: float


@dataclass(slots=True)
class _Run:
    """Of steps in which one worker was slower."""

    since_s: float
    slowdowns: list[float]


class Stragglers:
    """Of one generation."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}
        self._told_at_s: dict[int, float] = {}

    def found(self, own_s: Sequence[float], now_s: float) -> Straggler | None:
        """After a step. own_s: by rank."""
        for rank, mine_s in enumerate(own_s):
            slowdown = _slowdown(mine_s, [*own_s[:rank], *own_s[rank + 1 :]])
            if slowdown is None:
                self._runs.pop(rank, None)
                continue
            run = self._runs.setdefault(rank, _Run(now_s, []))
            run.slowdowns = [*run.slowdowns[1 - STEPS :], slowdown]
            lasting = len(run.slowdowns) == STEPS and now_s - run.since_s >= LASTING_S
            if lasting and now_s - self._told_at_s.get(rank, -TELL_EVERY_S) >= TELL_EVERY_S:
                self._told_at_s[rank] = now_s
                return Straggler(rank, statistics.median(run.slowdowns))
        return None


def _slowdown(mine_s: float, others_s: Sequence[float]) -> float | None:
    """None if it is as fast as could be expected of one of them."""
    if not others_s or (median_s := statistics.median(others_s)) <= 0:
        return None
    deviation_s = _SIGMA * statistics.median(abs(other_s - median_s) for other_s in others_s)
    if mine_s < max(FACTOR * median_s, median_s + DEVIATIONS * deviation_s):
        return None
    return mine_s / median_s
