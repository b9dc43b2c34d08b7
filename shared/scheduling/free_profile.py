"""GPUs not yet promised, as a step function of time. Who gets them is decided elsewhere.

Time is continuous: the profile has a breakpoint at each instant at which a promise begins or ends,
and no grid. Plain lists, never changed once a profile is made: for a few hundred breakpoints they beat arrays.
Axis: B = the pieces between breakpoints, the last one without end.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple


class Segment(NamedTuple):
    """`num_gpus` GPUs held from `start_s` until `end_s`."""

    start_s: float
    end_s: float
    num_gpus: int


Schedule = tuple[Segment, ...]
"""The GPUs one job holds over time: disjoint segments in order; the job ends with the last of them."""


class FreeProfile:
    """Free GPUs over [now_s, inf); a value: each change makes a new one."""

    __slots__ = ("num_gpus_B", "starts_s_B")

    def __init__(self, starts_s_B: list[float], num_gpus_B: list[int]) -> None:
        self.starts_s_B = starts_s_B
        self.num_gpus_B = num_gpus_B

    @classmethod
    def constant(cls, num_gpus: int, now_s: float) -> "FreeProfile":
        """All GPUs free from now on."""
        return cls([now_s], [num_gpus])

    @classmethod
    def of(cls, num_gpus: int, now_s: float, schedules: Iterable[Schedule]) -> "FreeProfile":
        """What is left of `num_gpus` GPUs after all `schedules`: one sweep, faster than many reservations."""
        changes: list[tuple[float, int]] = []
        for schedule in schedules:
            for start_s, end_s, held in schedule:
                changes += ((start_s, -held), (end_s, held))
        starts_s, free, left = [now_s], [num_gpus], num_gpus
        for at_s, change in sorted(changes):
            left += change
            if at_s == starts_s[-1]:
                free[-1] = left
            else:
                starts_s.append(at_s)
                free.append(left)
        assert min(free) >= 0, "more GPUs promised than exist"
        return cls(starts_s, free)

    @property
    def now_s(self) -> float:
        """The instant from which on the profile speaks."""
        return self.starts_s_B[0]

    @property
    def num_gpus_now(self) -> int:
        """GPUs free at `now_s`."""
        return self.num_gpus_B[0]

    @property
    def lowest(self) -> int:
        """Fewest GPUs free at any instant; negative only while a plan is being rearranged."""
        return min(self.num_gpus_B)

    def overdrawn(self) -> tuple[float, float] | None:
        """From the first instant to the last at which GPUs are missing; None if none ever is."""
        if self.lowest >= 0:
            return None
        missing = [piece for piece, num_gpus in enumerate(self.num_gpus_B) if num_gpus < 0]
        last = missing[-1] + 1
        return self.starts_s_B[missing[0]], self.starts_s_B[last] if last < len(self.starts_s_B) else math.inf

    def after(self, now_s: float) -> "FreeProfile":
        """The same profile, from a later instant on."""
        if now_s == self.starts_s_B[0]:
            return self
        assert now_s > self.starts_s_B[0], "a profile knows nothing of the past"
        first = bisect_right(self.starts_s_B, now_s) - 1
        return FreeProfile([now_s, *self.starts_s_B[first + 1 :]], self.num_gpus_B[first:])

    def lowest_within(self, schedule: Schedule) -> int | float:
        """Fewest GPUs free at any instant of `schedule`."""
        lowest: int | float = math.inf
        for segment in schedule:
            first = bisect_right(self.starts_s_B, segment.start_s) - 1
            end = bisect_left(self.starts_s_B, segment.end_s)
            lowest = min(lowest, *self.num_gpus_B[first:end])
        return lowest

    def fits(self, schedule: Schedule) -> bool:
        """Whether `schedule` can be reserved."""
        return all(self.lowest_within((segment,)) >= segment.num_gpus for segment in schedule)

    def reserve(self, *schedules: Schedule) -> "FreeProfile":
        """The profile without the GPUs of `schedules`, which must be free."""
        reserved = self._changed(chain.from_iterable(schedules), 1)
        assert reserved.lowest >= 0, "more GPUs promised than exist"
        return reserved

    def release(self, *schedules: Schedule) -> "FreeProfile":
        """The profile with the GPUs of `schedules` given back."""
        return self._changed(chain.from_iterable(schedules), -1)

    def overdraw(self, schedule: Schedule) -> "FreeProfile":
        """As `reserve`, but may go below zero: the caller then makes others give way."""
        return self._changed(schedule, 1)

    def segments(self, until_s: float) -> Iterator[Segment]:
        """The pieces up to `until_s`, in order."""
        ends_s = [*self.starts_s_B[1:], math.inf]
        for start_s, end_s, num_gpus in zip(self.starts_s_B, ends_s, self.num_gpus_B, strict=True):
            if start_s >= until_s:
                return
            yield Segment(start_s, min(end_s, until_s), num_gpus)

    def _changed(self, segments: Iterable[Segment], sign: int) -> "FreeProfile":
        starts_s, free = self.starts_s_B.copy(), self.num_gpus_B.copy()
        for start_s, end_s, num_gpus in segments:
            first = _split(starts_s, free, start_s)
            end = _split(starts_s, free, end_s)
            taken = sign * num_gpus
            free[first:end] = [count - taken for count in free[first:end]]
            _merge(starts_s, free, end)
            _merge(starts_s, free, first)
        return FreeProfile(starts_s, free)


def _split(starts_s: list[float], free: list[int], at_s: float) -> int:
    """Index of the piece that begins at `at_s`, made by a cut if there is none."""
    index = bisect_left(starts_s, at_s)
    if index == len(starts_s) or starts_s[index] != at_s:
        if math.isinf(at_s):
            return index
        assert index > 0, "a profile knows nothing of the past"
        starts_s.insert(index, at_s)
        free.insert(index, free[index - 1])
    return index


def _merge(starts_s: list[float], free: list[int], index: int) -> None:
    """Drop the breakpoint at `index` where the count no longer changes, so that profiles stay short."""
    if 0 < index < len(free) and free[index] == free[index - 1]:
        del starts_s[index], free[index]
