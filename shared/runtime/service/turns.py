"""Whose turn it is: a tenant with many items must not delay those of the others."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

REMEMBERED = 1_000  # rounds: for so long a tenant without items counts as one that may have some
MAX_TENANTS = 10_000  # whose last round is known; an older one counts as none


class Turns:
    """Rounds with items of several tenants: each had its last turn in some round, or none."""

    def __init__(self) -> None:
        self._num_rounds = 0
        self._last_rounds: dict[str, int] = {}  # by tenant, the last one at the end

    def in_turns(self, items: Sequence[T], tenant_of: Callable[[T], str]) -> list[T]:
        """One item of each tenant, then a second one of each that has two, and so on.

        Items of one tenant keep their order. The tenant whose turn was longest ago is first; of those without a turn,
        the one with the first item.
        """
        tenants = list(map(tenant_of, items))
        waiting = dict.fromkeys(tenants)
        new = (tenant for tenant in waiting if tenant not in self._last_rounds)
        known = (tenant for tenant in self._last_rounds if tenant in waiting)
        rank = {tenant: number for number, tenant in enumerate((*new, *known))}
        num_before = Counter[str]()
        places: list[tuple[int, int]] = []
        for tenant in tenants:
            places.append((num_before[tenant], rank[tenant]))
            num_before[tenant] += 1
        return [items[index] for index in sorted(range(len(items)), key=places.__getitem__)]

    def are_shared(self, waiting: Iterable[str]) -> bool:
        """Whether several tenants have items: waiting ones, or turns a short while ago."""
        recent = {tenant for tenant, last in self._last_rounds.items() if last > self._num_rounds - REMEMBERED}
        return len(recent.union(waiting)) > 1

    def had(self, tenants: Iterable[str]) -> None:
        """These had their turns in one round, in this order."""
        self._num_rounds += 1
        for tenant in tenants:
            self._last_rounds.pop(tenant, None)
            self._last_rounds[tenant] = self._num_rounds
        for tenant in list(self._last_rounds)[: max(len(self._last_rounds) - MAX_TENANTS, 0)]:
            del self._last_rounds[tenant]
