"""How long a command waits for a cluster that has just lost a server: an election takes seconds, and who asks
meanwhile is not answered."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from shared.errors import MaybeStored, Unavailable

PATIENCE_S = 15.0
_RETRY_S = 0.2

T = TypeVar("T")
P = ParamSpec("P")


async def patiently(call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the call gives, repeated while JetStream does not answer; it has to be one that repeating cannot harm.

    No call begins later than PATIENCE_S after the first. Raises what the last one raised.
    """
    give_up_at_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await call(*args, **kwargs)
        except (Unavailable, MaybeStored):
            if time.monotonic() + _RETRY_S > give_up_at_s:
                raise
        await asyncio.sleep(_RETRY_S)
