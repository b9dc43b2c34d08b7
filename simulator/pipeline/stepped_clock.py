"""The clock of one simulated machine: virtual time, from which it may be set off."""

import asyncio

from elasticflow.simulator.engine.virtual_time_loop import VirtualTimeLoop


class SteppedClock:
    """See `Clock`. Sleepers follow it when it is set while they sleep. Messages are stamped by the server's clock."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._offset_s = 0.0
        self._sleepers: dict[asyncio.Future[bool], None] = {}  # in their order

    def now_s(self) -> float:
        return self._loop.now_s + self._offset_s

    def set_off(self, offset_s: float) -> None:
        """The clock is ahead by so much from now on; 0 sets it right."""
        self._offset_s = offset_s
        for sleeper in list(self._sleepers):
            _wake(sleeper, False)

    async def sleep_until(self, at_s: float) -> None:
        is_due = at_s <= self.now_s()
        while not is_due:
            woken: asyncio.Future[bool] = self._loop.create_future()
            timer = self._loop.call_at(at_s - self._offset_s, _wake, woken, True)
            self._sleepers[woken] = None
            try:
                is_due = await woken or at_s <= self.now_s()
            finally:
                timer.cancel()
                del self._sleepers[woken]


def _wake(sleeper: "asyncio.Future[bool]", is_due: bool) -> None:
    """is_due: False if the clock was set."""
    if not sleeper.done():
        sleeper.set_result(is_due)
