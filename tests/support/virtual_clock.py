"""A clock for tests of what waits: it moves when it is told to."""

import asyncio
import heapq
import itertools


class VirtualClock:
    """A clock that moves only when told to; sleepers wake in the order of instants, then of calls."""

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
        """When the first sleeper wants to wake; None if nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].cancelled():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    async def advance_to(self, at_s: float) -> None:
        """Move to at_s, stopping at every instant on the way at which somebody wakes."""
        while (wake_s := self.next_wake_s()) is not None and wake_s <= at_s:
            self._now_s = max(self._now_s, wake_s)
            heapq.heappop(self._sleepers)[2].set_result(None)
            await asyncio.sleep(
                0
            )  # the sleeper runs at its own instant, and may go to sleep again before at_s
        self._now_s = max(self._now_s, at_s)
