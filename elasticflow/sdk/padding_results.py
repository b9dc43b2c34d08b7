"""The results of a padding load for synchronous code: a thread follows the load, any other thread reads."""

import asyncio
import atexit
import queue
import threading
import time
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import aclosing, suppress
from typing import Any

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.client.result_values import delete_result_files, value_of
from elasticflow.sdk.packaging import Package
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import TaskResult

MAX_RECEIVED = 1_000  # results that wait for their reader
FULL_S = 0.02
CLOSE_TIMEOUT_S = 15.0


class LoadResults:
    """The results of a load, from a thread with an event loop of its own. A daemon, so that it never delays an exit.

    `close` is called once no value is needed any more: it deletes the files of large results.
    """

    def __init__(
        self, endpoint: Endpoint, tenant: str, spec: LoadSpec, code: Package | None, load_id: str, inputs: Iterable[Any]
    ) -> None:
        self._arguments = endpoint, tenant, spec, code, load_id, inputs
        self._received: queue.Queue[TaskResult | BaseException | None] = queue.Queue(MAX_RECEIVED)
        self._closed: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"load {load_id}", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a script may end with a load that it has not read to its end

    def __iter__(self) -> Generator[TaskResult]:
        while (received := self._received.get()) is not None:
            if isinstance(received, BaseException):
                raise received
            yield received

    def value_of(self, result: TaskResult) -> Any:
        """What the task returned. Raises TaskError if it failed for good, ResultFileUnusable."""
        endpoint, _, _, _, load_id, _ = self._arguments
        return value_of(result, load_id, endpoint.data_dir)

    def close(self) -> None:
        """Cancel what is left of the load, and wait until that is done, at most CLOSE_TIMEOUT_S."""
        atexit.unregister(self.close)
        with suppress(RuntimeError):  # it has ended, with its loop
            self._loop.call_soon_threadsafe(lambda: self._closed and self._closed.set())
        give_up_s = time.monotonic() + CLOSE_TIMEOUT_S
        while self._thread.is_alive() and time.monotonic() < give_up_s:
            with suppress(queue.Empty):  # it may wait to pass on a last one
                self._received.get_nowait()
            self._thread.join(FULL_S)
        endpoint, _, _, _, load_id, _ = self._arguments
        delete_result_files(load_id, endpoint.data_dir)
        with suppress(queue.Full):  # a reader in another thread may wait for the next one
            self._received.put_nowait(None)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._receive())
        except BaseException as raised:
            error = raised
        self._received.put(error)

    async def _receive(self) -> None:
        endpoint, tenant, spec, code, load_id, inputs = self._arguments
        self._closed = asyncio.Event()
        async with Client.connect(endpoint, tenant=tenant) as client:
            receiving = asyncio.create_task(self._pass_on(client.results_of(inputs, spec, load_id=load_id, code=code)))
            closing = asyncio.create_task(self._closed.wait())
            await asyncio.wait({receiving, closing}, return_when=asyncio.FIRST_COMPLETED)
            closing.cancel()
            receiving.cancel()
            await asyncio.wait({receiving})
            if not receiving.cancelled():
                receiving.result()

    async def _pass_on(self, results: AsyncGenerator[TaskResult]) -> None:
        async with aclosing(results):
            async for result in results:
                while self._received.full():  # noqa: ASYNC110 - the reader is another thread
                    await asyncio.sleep(FULL_S)
                self._received.put_nowait(result)
