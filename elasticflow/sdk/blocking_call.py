"""One call of the asynchronous client from synchronous code."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint

T = TypeVar("T")


def with_client(endpoint: Endpoint, tenant: str, call: Callable[[Client], Awaitable[T]]) -> T:
    """Connect to the pool, make the call, and disconnect."""

    async def connected() -> T:
        async with Client.connect(endpoint, tenant=tenant) as client:
            return await call(client)

    return _blocking(connected())


def _blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end, in another thread if this one runs an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
