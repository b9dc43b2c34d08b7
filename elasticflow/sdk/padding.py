"""Padding loads for scripts and notebooks: one function called on many inputs, on GPUs that no job uses."""

import asyncio
import atexit
import inspect
import io
import pickle
import queue
import re
import site
import sys
import sysconfig
import threading
import time
import zipfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing, closing, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from elasticflow.client.client import Client
from elasticflow.client.command_requests import Package
from elasticflow.client.loads import pickled_value_of
from elasticflow.client.pool_endpoint import Endpoint, find_endpoint
from elasticflow.sdk.packaging import PackagingFailed, package
from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import TaskResult
from elasticflow.shared.messages.worker_protocol.task_running import MAX_TASK_BYTES
from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.runtime.process.folder_tree import delete_folder

# --- padding code -------------------------------------------------------------------------------------
# The code of a padding load: what is sent with it, what nodes import from installed packages, and pickled calls.

# --- padding calls -------------------------------------------------------------------------------------
# What nodes execute for `PaddingExecutor` and the joblib backend: calls of functions that are imported by name.

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # a function and its arguments


def call(pickled: bytes) -> Any:
    """The task function of these loads. pickled: a Call."""
    function, args, kwargs = pickle.loads(pickled)
    return function(*args, **kwargs)


def call_each(calls: Iterable[Call]) -> list[Any]:
    """Several calls as one task."""
    return [function(*args, **kwargs) for function, args, kwargs in calls]


def imported(name: str) -> Any:
    """A function or class of the code that was sent. name: "package.module:function"."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


# --- padding code --------------------------------------------------------------------------------------


def named_code(function: Callable[..., Any]) -> tuple[str, Package | None]:
    """The name by which nodes import the function, and its code; None if it belongs to an installed package.

    Raises PackagingFailed for a function that another process cannot import by its name.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module and name.isidentifier() and _is_installed(module):
        if getattr(sys.modules[module], name, None) is function:
            return f"{module}:{name}", None
    elif inspect.isfunction(function):
        code = packed(function)
        return code.training_function, code
    raise _not_importable(function)


def packed(function: Callable[..., Any]) -> Package:
    """The code of a function or class. Raises PackagingFailed."""
    name = function.__qualname__
    if not name.isidentifier():
        raise _not_importable(function)
    try:
        file = inspect.getfile(function)
    except (OSError, TypeError):
        file = ""
    if not Path(file).is_file():
        raise PackagingFailed(f"{name} has no source file: define it in a module")
    return package(f"{file}:{name}")


def load_name(function: str) -> str:
    """A fresh name for a load of this function."""
    return f"{re.sub('[^A-Za-z0-9]', '-', function[:50])}-{fresh_id()[:6]}"


class PickledCalls:
    """Pickles the calls of one load. The first call decides which code is sent: that of its first function.

    Functions and classes of this code are pickled by their names there. A script's are then found in its module, not
    in `__main__`. Functions of installed packages are pickled by reference.
    """

    def __init__(self) -> None:
        self.code: Package | None = None
        self._files: set[tuple[str, int]] = set()
        self._has_calls = False
        self._names: dict[Any, str] = {}

    def pickled(self, call: Call) -> bytes:
        """Raises PackagingFailed for a function whose code is not sent, TooLarge, and what pickle raises."""
        if not self._has_calls:  # the one before may have failed
            self.code = None
            self._names.clear()
        buffer = io.BytesIO()
        _CallPickler(buffer, self._name_of).dump(call)
        data = buffer.getvalue()
        if len(data) > MAX_TASK_BYTES:
            raise TooLarge(f"the arguments of {_name(call[0])}", len(data), MAX_TASK_BYTES)
        self._has_calls = True
        return data

    def _name_of(self, function: Callable[..., Any]) -> str:
        if function not in self._names:
            code = packed(function)
            files = _files_of(code)
            if self.code is None and not self._has_calls:
                self.code, self._files = code, files
            elif not files <= self._files:
                raise PackagingFailed(
                    f"the code of {_name(function)} is not sent: an executor sends the file of its first function and "
                    "what that imports from beside it; import it there, or use another executor"
                )
            self._names[function] = code.training_function
        return self._names[function]


class _CallPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, name_of: Callable[[Callable[..., Any]], str]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._name_of = name_of

    def reducer_override(self, obj: Any) -> Any:
        is_named = isinstance(obj, FunctionType) or (isinstance(obj, type) and obj.__qualname__.isidentifier())
        if not is_named or _is_installed(obj.__module__):
            return NotImplemented
        return imported, (self._name_of(obj),)


def _not_importable(function: Callable[..., Any]) -> PackagingFailed:
    return PackagingFailed(f"{_name(function)} cannot be imported by name: define it with def at the top of a module")


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", "") or type(function).__name__


def _files_of(code: Package) -> set[tuple[str, int]]:
    """The path and checksum of each file."""
    with zipfile.ZipFile(io.BytesIO(code.archive)) as archive:
        return {(entry.filename, entry.CRC) for entry in archive.infolist()}


@cache
def _is_installed(module: str) -> bool:
    """Whether nodes are expected to have this module: the standard library, site-packages, and elasticflow itself."""
    if module == "__main__" or module not in sys.modules:
        return False
    file = getattr(sys.modules[module], "__file__", None)
    if file is None or module.partition(".")[0] == "elasticflow":
        return True
    return any(Path(file).resolve().is_relative_to(folder) for folder in _installed_folders())


@cache
def _installed_folders() -> tuple[Path, ...]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(Path(path).resolve() for path in (*paths, *site.getsitepackages(), site.getusersitepackages()))


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
