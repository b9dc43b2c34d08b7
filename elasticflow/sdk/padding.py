"""Padding loads for scripts and notebooks: one function called on many inputs, on GPUs that no job uses."""

import asyncio
import atexit
import inspect
import pickle
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, TypeVar

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint, find_endpoint
from elasticflow.errors import TaskError
from elasticflow.sdk.packaging import Package, PackagingFailed, package
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import TaskResult
from elasticflow.shared.runtime.process.clock import fresh_id

Input = TypeVar("Input")
Output = TypeVar("Output")
MAX_RECEIVED = 1_000  # results that wait for their reader
FULL_S = 0.02
CLOSE_TIMEOUT_S = 15.0


def map(
    function: Callable[[Input], Output],
    inputs: Iterable[Input],
    *,
    task_s: float = 1.0,
    overhead_s: float = 0.0,
    memory_bytes: int = 0,
    task_timeout_s: float = 3_600.0,
    max_attempts: int = 3,
    load_id: str = "",
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> Generator[Output]:
    """Call the function on each input, on idle GPUs of the pool; yields the results in the order of the inputs.

    function: from the top of a module; its code is sent. A call may be executed twice, so it must be idempotent.
    task_s, overhead_s: seconds of one call, about. Raises PackagingFailed, LoadNotOpened, and TaskError for a call that
    failed max_attempts times; the remaining calls are cancelled then.
    """
    code = _package(function)
    spec = LoadSpec(
        task_function=code.training_function,
        code_digest=code.code_digest,
        task_s=task_s,
        overhead_s=overhead_s,
        memory_bytes=memory_bytes,
        task_timeout_s=task_timeout_s,
        max_attempts=max_attempts,
    )
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    name = load_id or f"{function.__name__[:50].replace('_', '-')}-{fresh_id()[:6]}"
    return _in_order(endpoint, tenant, spec, code, name, inputs)


def _package(function: Callable[..., Any]) -> Package:
    """Raises PackagingFailed for a function that another process cannot import by its name."""
    name = getattr(function, "__qualname__", "")
    if not inspect.isfunction(function) or not name.isidentifier():
        what = name or type(function).__name__
        raise PackagingFailed(f"{what} cannot be imported by name: define it with def at the top of a module")
    try:
        file = inspect.getfile(function)
    except (OSError, TypeError):
        raise PackagingFailed(f"{name} has no source file: define it in a module") from None
    return package(f"{file}:{name}")


def _in_order(
    endpoint: Endpoint, tenant: str, spec: LoadSpec, code: Package, load_id: str, inputs: Iterable[Any]
) -> Generator[Any]:
    results, early, due = _Results(endpoint, tenant, spec, code, load_id, inputs), dict[int, TaskResult](), 0
    try:
        for result in results:
            early[result.index] = result
            while (next_one := early.pop(due, None)) is not None:
                if next_one.value is None:
                    raise TaskError(due, next_one.attempts, next_one.error, next_one.traceback)
                yield pickle.loads(next_one.value)
                due += 1
    finally:
        results.close()


class _Results:
    """The results of a load, from a thread with an event loop of its own. A daemon, so that it never delays an exit."""

    def __init__(
        self, endpoint: Endpoint, tenant: str, spec: LoadSpec, code: Package, load_id: str, inputs: Iterable[Any]
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
