"""A clock for tests of waits: it moves only when a test advances it."""

import asyncio
import heapq
import itertools


class VirtualClock:
    """A clock that a test advances. Sleepers wake in the order of their instants, then of their calls."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._tickets = itertools.count()

    def now_s(self) -> float:
        return self._now_s

    async def sleep_until(self, at_s: float) -> None:
        if at_s <= self._now_s:
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (at_s, next(self._tickets), wake))
        await wake

    def next_wake_s(self) -> float | None:
        """When the first sleeper wakes; None if there is none."""
        while self._sleepers and self._sleepers[0][2].cancelled():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    async def advance_to(self, at_s: float) -> None:
        """Advance to at_s, in steps from one waking sleeper to the next."""
        while (wake_s := self.next_wake_s()) is not None and wake_s <= at_s:
            self._now_s = max(self._now_s, wake_s)
            heapq.heappop(self._sleepers)[2].set_result(None)
            await asyncio.sleep(0)  # the sleeper runs at its instant, and may sleep again before at_s
        self._now_s = max(self._now_s, at_s)
