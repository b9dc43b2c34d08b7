"""A pool with a real admission whose event loop is that of a thread, for tests with Playwright, which has its own."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.runtime.process.clock import SystemClock
from testbed.command_line import POOL, CommandLinePool, command_line_pool
from testbed.histories import spec

TENANT = "lab"
_PATIENCE_S = 60.0
T = TypeVar("T")


@dataclass(frozen=True)
class PoolInThread:
    """cli: its coroutines run in `run`."""

    cli: CommandLinePool
    _loop: asyncio.AbstractEventLoop

    def run(self, wanted: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(wanted, self._loop).result(_PATIENCE_S)

    def submit(self, job_id: str, *, within_s: float = 300.0, **changes: Any) -> Any:
        """Admission's decision."""
        return self.run(self._submit(job_id, within_s, changes))

    def job(self, job_id: str) -> Any:
        """Of the ledger, as it is now; None if it has none of this name."""
        return self.run(self._state()).job(job_id)

    async def _submit(self, job_id: str, within_s: float, changes: dict[str, Any]) -> Any:
        async with self._client() as client:
            return await client.submit(spec(deadline_s=None, deadline_in_s=within_s, **changes), job_id=job_id)

    async def _state(self) -> Any:
        async with self._client() as client:
            return await client.ledger.state()

    def _client(self) -> Any:
        return Client.connect(Endpoint(nats_url=self.cli.url, pool=POOL), tenant=TENANT, clock=SystemClock())


@contextmanager
def pool_in_thread(url: str, folder: Path) -> Iterator[PoolInThread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = command_line_pool(url, folder)
    try:
        cli = asyncio.run_coroutine_threadsafe(made.__aenter__(), loop).result(_PATIENCE_S)
        try:
            yield PoolInThread(cli, loop)
        finally:
            asyncio.run_coroutine_threadsafe(made.__aexit__(None, None, None), loop).result(_PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PATIENCE_S)
        loop.close()
