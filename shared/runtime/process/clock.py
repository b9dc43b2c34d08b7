"""Time and fresh names: the only module that asks the operating system for either."""

import asyncio
import time
import uuid
from typing import Protocol


def fresh_id() -> str:
    """A name that was never used before; only for causes, because ids of consequences are derived from them."""
    return uuid.uuid4().hex


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds since 1970."""
        ...

    async def sleep_until(self, at_s: float) -> None:
        """Return once now_s() >= at_s."""
        ...


class SystemClock:
    """The wall clock; sleeps follow it even when it is set while they sleep, to within a second."""

    def now_s(self) -> float:
        return time.time()

    async def sleep_until(self, at_s: float) -> None:
        while (remaining_s := at_s - time.time()) > 0:  # noqa: ASYNC110 - no event reports that a clock was set
            await asyncio.sleep(min(remaining_s, 1.0))
