"""Padding loads for scripts and notebooks: one function called on many inputs, on GPUs that no job uses."""

import asyncio
import atexit
import pickle
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from elasticflow.client.client import Client
from elasticflow.client.command_requests import Package
from elasticflow.client.load_results import pickled_value_of
from elasticflow.client.pool_endpoint import Endpoint, find_endpoint
from elasticflow.sdk.padding_code import load_name, named_code
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import TaskResult
from elasticflow.shared.runtime.process.folder_tree import delete_folder

# --- padding results -----------------------------------------------------------------------------------
# The results of a padding load for synchronous code: a thread follows the load, any other thread reads.

MAX_RECEIVED = 1_000  # results that wait for their reader
FULL_S = 0.02
CLOSE_TIMEOUT_S = 15.0


def in_order(results: Iterable[TaskResult]) -> Generator[TaskResult]:
    """The results of a load in the order of its tasks; those that are early wait."""
    early, due = dict[int, TaskResult](), 0
    for result in results:
        early[result.index] = result
        while (next_one := early.pop(due, None)) is not None:
            yield next_one
            due += 1


class ReceivedResults:
    """Results of one load, from a thread with an event loop of its own. A daemon, so that it never delays an exit."""

    def __init__(
        self, endpoint: Endpoint, tenant: str, load_id: str, results_of: Callable[[Client], AsyncGenerator[TaskResult]]
    ) -> None:
        self._endpoint, self._tenant, self._load_id, self._results_of = endpoint, tenant, load_id, results_of
        self._received: queue.Queue[TaskResult | BaseException | None] = queue.Queue(MAX_RECEIVED)
        self._folder: Path | None = None  # of its large results, once there is one
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
        return pickle.loads(self.pickled_value_of(result))

    def pickled_value_of(self, result: TaskResult) -> bytes:
        """The same as its runner pickled it."""
        return pickled_value_of(result, self._folder)

    def close(self) -> None:
        """Receive no more, and wait until the client has disconnected, at most CLOSE_TIMEOUT_S."""
        atexit.unregister(self.close)
        with suppress(RuntimeError):  # it has ended, with its loop
            self._loop.call_soon_threadsafe(lambda: self._closed and self._closed.set())
        give_up_s = time.monotonic() + CLOSE_TIMEOUT_S
        while self._thread.is_alive() and time.monotonic() < give_up_s:
            with suppress(queue.Empty):  # it may wait to pass on a last one
                self._received.get_nowait()
            self._thread.join(FULL_S)
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
        self._closed = asyncio.Event()
        async with Client.connect(self._endpoint, tenant=self._tenant) as client:
            receiving = asyncio.create_task(self._pass_on(client))
            closing = asyncio.create_task(self._closed.wait())
            await asyncio.wait({receiving, closing}, return_when=asyncio.FIRST_COMPLETED)
            closing.cancel()
            receiving.cancel()
            await asyncio.wait({receiving})
            if not receiving.cancelled():
                receiving.result()

    async def _pass_on(self, client: Client) -> None:
        async with aclosing(self._results_of(client)) as results:
            async for result in results:
                while self._received.full():  # noqa: ASYNC110 - the reader is another thread
                    await asyncio.sleep(FULL_S)
                if result.file_digest and self._folder is None:
                    self._folder = await client.result_folder(self._load_id)
                self._received.put_nowait(result)


class LoadResults(ReceivedResults):
    """The results of a load that it opens; closed before the last one, it cancels the load.

    `close` is called once no value is needed any more: it deletes the files of large results.
    """

    def __init__(
        self, endpoint: Endpoint, tenant: str, spec: LoadSpec, code: Package | None, load_id: str, inputs: Iterable[Any]
    ) -> None:
        super().__init__(
            endpoint, tenant, load_id, lambda client: client.results_of(inputs, spec, load_id=load_id, code=code)
        )

    def close(self) -> None:
        super().close()
        if self._folder is not None:
            delete_folder(self._folder)


# --- padding -------------------------------------------------------------------------------------------

Input = TypeVar("Input")
Output = TypeVar("Output")


def map(
    function: Callable[[Input], Output],
    inputs: Iterable[Input],
    *,
    task_s: float = 1.0,
    overhead_s: float = 0.0,
    memory_bytes: int = 0,
    gpu_type: str = "",
    task_timeout_s: float = 3_600.0,
    max_attempts: int = 3,
    load_id: str = "",
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> Generator[Output]:
    """Call the function on each input, on idle GPUs of the pool; yields the results in the order of the inputs.

    function: from the top of a module; its code is sent, except for functions of installed packages. A call may be
    executed twice, so it must be idempotent.
    task_s, overhead_s: seconds of one call, about. memory_bytes, gpu_type: of the GPU or CPU slot; any by default.
    Raises PackagingFailed, LoadNotOpened, and TaskError for a call that failed max_attempts times; the remaining calls
    are cancelled then.
    """
    task_function, code = named_code(function)
    spec = LoadSpec(
        task_function=task_function,
        code_digest=code.code_digest if code is not None else "",
        task_s=task_s,
        overhead_s=overhead_s,
        memory_bytes=memory_bytes,
        gpu_type=gpu_type,
        task_timeout_s=task_timeout_s,
        max_attempts=max_attempts,
    )
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _in_order(endpoint, tenant, spec, code, load_id or load_name(function.__name__), inputs)


def _in_order(
    endpoint: Endpoint, tenant: str, spec: LoadSpec, code: Package | None, load_id: str, inputs: Iterable[Any]
) -> Generator[Any]:
    with closing(LoadResults(endpoint, tenant, spec, code, load_id, inputs)) as results:
        for result in in_order(results):
            yield results.value_of(result)
