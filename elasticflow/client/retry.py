"""Retries while a cluster that has lost a server elects another leader: that takes seconds, without any reply."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from elasticflow.shared.errors import MaybeStored, Unavailable

RETRY_TIMEOUT_S = 15.0
_RETRY_S = 0.2

T = TypeVar("T")
P = ParamSpec("P")


async def with_retry(call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Repeat an idempotent call while JetStream does not reply.

    No attempt starts later than RETRY_TIMEOUT_S after the first. Raises the error of the last attempt.
    """
    give_up_at_s = time.monotonic() + RETRY_TIMEOUT_S
    while True:
        try:
            return await call(*args, **kwargs)
        except (Unavailable, MaybeStored):
            if time.monotonic() + _RETRY_S > give_up_at_s:
                raise
        await asyncio.sleep(_RETRY_S)
