"""Jain's fairness index of each minute, among the tenants that had waiting tasks during the whole minute.

Source of the index: Jain, Chiu and Hawe, DEC-TR-301 (1984): (sum x)^2 / (n sum x^2); 1 if all n values are equal.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

MINUTE_S = 60.0
_ROUNDING_S = 1e-6


def jain_index(values: Sequence[float]) -> float:
    """From 1 / n for one positive value to 1 for equal ones; 1 if all are 0."""
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
