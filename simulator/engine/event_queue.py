"""Virtual time: a heap of callbacks ordered by (time, ticket), and a clock that jumps from one to the next."""

import heapq
from collections.abc import Callable


class Engine:
    """Callbacks of one instant run in the order in which they were scheduled."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._tickets = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, at_s: float, callback: Callable[[], None]) -> None:
        """Call back at at_s, or now if that has passed."""
        self._tickets += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._tickets, callback))

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, callback)

    def run(self, until_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run until done(), or until_s, or until nothing is scheduled."""
        while self._heap and self._heap[0][0] <= until_s and not done():
            self.now_s, _, callback = heapq.heappop(self._heap)
            callback()
