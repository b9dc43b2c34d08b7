"""Virtual time: a heap of happenings ordered by (time, ticket), and a clock that jumps from one to the next."""

import heapq
from collections.abc import Callable


class Engine:
    """What happens at one instant happens in the order in which it was scheduled."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._tickets = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, at_s: float, happening: Callable[[], None]) -> None:
        """Let it happen at at_s, or now if that has passed."""
        self._tickets += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._tickets, happening))

    def after(self, delay_s: float, happening: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, happening)

    def run(self, until_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Until done(), or until_s, or nothing is left to happen."""
        while self._heap and self._heap[0][0] <= until_s and not done():
            self.now_s, _, happening = heapq.heappop(self._heap)
            happening()
