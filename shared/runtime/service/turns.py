"""Whose turn it is: a tenant with much work must not delay that of the others.

Each tenant has used some seconds of work so far, and the next item is that of the tenant that has used least. Who had
nothing to do for a while has saved nothing: it begins with what the tenant of the last turn had used before that turn.
This is start-time fair queueing (Goyal, Vin and Cheng, 1996).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

REMEMBERED = 1_000  # rounds: for so long a tenant without items counts as one that may have some
MAX_TENANTS = 10_000  # whose use is known; of more, the one whose turn was longest ago counts as new


class _Use(NamedTuple):
    last_round: int
    used_s: float


class Turns:
    """Rounds with items of several tenants: each had its last turn in some round, or none."""

    def __init__(self) -> None:
        self._num_rounds = 0
        self._begun_s = 0.0  # what the tenant that was first in the last round had used before it
        self._uses: dict[str, _Use] = {}  # by tenant, the one with the last turn at the end

    def in_turns(self, items: Sequence[T], tenant_of: Callable[[T], str], work_s: Callable[[T], float]) -> list[T]:
        """Each item as soon as no other tenant has used less, with the items before. work_s: as expected of an item.

        Items of one tenant keep their order. Of tenants that have used the same, the one whose turn was longest ago is
        first; of those without a turn, the one with the first item.
        """
        tenants = list(map(tenant_of, items))
        used_s = {tenant: self._used_s(tenant) for tenant in tenants}
        new = (tenant for tenant in used_s if tenant not in self._uses)
        known = (tenant for tenant in self._uses if tenant in used_s)
        rank = {tenant: number for number, tenant in enumerate((*new, *known))}
        places: list[tuple[float, int]] = []
        for item, tenant in zip(items, tenants, strict=True):
            places.append((used_s[tenant], rank[tenant]))
            used_s[tenant] += work_s(item)
        return [items[index] for index in sorted(range(len(items)), key=places.__getitem__)]

    def are_shared(self, waiting: Iterable[str]) -> bool:
        """Whether several tenants have items: waiting ones, or turns a short while ago."""
        recent = {tenant for tenant, use in self._uses.items() if use.last_round > self._num_rounds - REMEMBERED}
        return len(recent.union(waiting)) > 1

    def had(self, turns: Iterable[tuple[str, float]]) -> None:
        """These tenants had their turns in one round, in this order, each with so many seconds of work."""
        self._num_rounds += 1
        turns = list(turns)
        if turns:
            self._begun_s = self._used_s(turns[0][0])
        for tenant, work_s in turns:
            used_s = self._used_s(tenant) + work_s
            self._uses.pop(tenant, None)
            self._uses[tenant] = _Use(self._num_rounds, used_s)
        for tenant in list(self._uses)[: max(len(self._uses) - MAX_TENANTS, 0)]:
            del self._uses[tenant]

    def _used_s(self, tenant: str) -> float:
        use = self._uses.get(tenant)
        return self._begun_s if use is None else max(use.used_s, self._begun_s)
