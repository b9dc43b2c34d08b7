"""Repeats of a call while the server has no leader for its stream."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from elasticflow.shared.errors import MaybeStored, Retry, Unavailable
from elasticflow.shared.runtime.process.logs import BackoffLogger

RETRY_TIMEOUT_S = 15.0  # a cluster that has lost a server elects a leader in seconds, without any reply
_RETRY_S = 0.2

T = TypeVar("T")
P = ParamSpec("P")


async def with_retry(call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Repeat an idempotent call while JetStream does not reply.

    No attempt starts later than RETRY_TIMEOUT_S after the first. Raises the error of the last attempt.
    """
    now_s = asyncio.get_running_loop().time
    give_up_at_s = now_s() + RETRY_TIMEOUT_S
    while True:
        try:
            return await call(*args, **kwargs)
        except (Unavailable, MaybeStored):
            if now_s() + _RETRY_S > give_up_at_s:
                raise
        await asyncio.sleep(_RETRY_S)


# --- until available -----------------------------------------------------------------------------------
# What a service opens once, at its start: a server that cannot answer then must not end it.

RETRY_S = 0.1


async def until_available(open: Callable[[], Awaitable[T]], log: Any, what: str) -> T:
    """The result of the first call that the server answers. what: the log says that it is postponed."""
    backoff = BackoffLogger(log, f"{what} postponed")
    while True:
        try:
            opened = await open()
        except Retry as error:
            backoff.goes_on(error)
            await asyncio.sleep(RETRY_S)
        else:
            backoff.is_over()
            return opened
