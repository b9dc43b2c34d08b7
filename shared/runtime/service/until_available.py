"""What a service opens once, at its start: a server that cannot answer then must not end it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from elasticflow.shared.errors import Retry
from elasticflow.shared.runtime.process.logs import BackoffLogger

RETRY_S = 0.1

T = TypeVar("T")


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
