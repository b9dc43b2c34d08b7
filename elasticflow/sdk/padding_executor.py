"""Padding loads as an executor of `concurrent.futures`: each call is a task, all calls of an executor are a load."""

import concurrent.futures.thread  # noqa: F401  # pyright: ignore[reportUnusedImport] - see the end of this file
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.errors import LoadWasCancelled, MissingExtra
from elasticflow.sdk.padding import Call, LoadResults, PickledCalls, call, load_name
from elasticflow.shared.messages.load_spec import LoadSpec

Arguments = ParamSpec("Arguments")
Output = TypeVar("Output")


class PaddingExecutor(Executor):
    """Calls functions on idle GPUs of the pool. Its load is opened at the first call, and ends with `shutdown`.

    The options are those of `elasticflow.map`. A call may be executed twice, so it must be idempotent. The code of the
    first function is sent, with what its file imports from beside it; later functions must be in that code or in an
    installed package.

    A future has TaskError if its call failed max_attempts times. If the load ends early, all pending futures have the
    cause: LoadNotOpened, LoadWasCancelled or an error of the connection. `submit` then raises BrokenExecutor. A future
    can be cancelled until its call is sent. Ctrl-C cancels the load: in the `with` block, in `shutdown`, and at the end
    of a script, which otherwise waits for all calls.
    """

    def __init__(
        self,
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
    ) -> None:
        """Raises NoPoolHere."""
        self._endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
        self._tenant, self._load_id = tenant, load_id
        self._spec = LoadSpec(
            task_function=f"{call.__module__}:{call.__name__}",
            task_s=task_s,
            overhead_s=overhead_s,
            memory_bytes=memory_bytes,
            gpu_type=gpu_type,
            task_timeout_s=task_timeout_s,
            max_attempts=max_attempts,
        )
        self._calls = PickledCalls()
        self._lock = threading.Lock()
        self._load: _ExecutorLoad | None = None
        self._is_shut_down = False

    def submit(
        self, fn: Callable[Arguments, Output], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Output]:
        """Call the function with these arguments. Raises PackagingFailed, TooLarge, BrokenExecutor; RuntimeError after
        a shutdown."""
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot submit calls after shutdown")
            pickled = self._calls.pickled((fn, args, kwargs))
            if self._load is None:
                self._load = self._open((fn, args, kwargs))
            return self._load.add(pickled)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. wait: until all calls are done. cancel_futures: those whose calls are not sent yet."""
        with self._lock:
            self._is_shut_down = True
        if self._load is not None:
            self._load.close(cancel_futures=cancel_futures)
            if wait:
                _await_ends([self._load])

    def cancel(self) -> None:
        """Cancel the load, also the calls that are being executed. Their futures have LoadWasCancelled."""
        self.shutdown(wait=False, cancel_futures=True)
        if self._load is not None:
            self._load.cancel()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        if isinstance(exc_val, KeyboardInterrupt):
            self.cancel()
        self.shutdown()

    def _open(self, first: Call) -> "_ExecutorLoad":
        code = self._calls.code
        spec = self._spec if code is None else replace(self._spec, code_digest=code.code_digest)
        name = getattr(first[0], "__name__", "call") if code is None else code.training_function.partition(":")[2]
        load_id = self._load_id or load_name(name)
        load = _ExecutorLoad(load_id, partial(LoadResults, self._endpoint, self._tenant, spec, code, load_id))
        weakref.finalize(self, load.close).atexit = False  # as a shutdown without waiting
        return load


class _ExecutorLoad:
    """The calls of an executor in their order, and the futures of those that are sent."""

    def __init__(self, load_id: str, results_of: Callable[[Iterable[bytes]], LoadResults]) -> None:
        self._load_id = load_id
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], bytes]] = deque()
        self._sent: dict[int, Future[Any]] = {}
        self._num_sent = 0
        self._is_closed = False
        self._error: BaseException | None = None
        self._results = results_of(iter(self._next_call, b""))
        self._settled = threading.Event()
        _open_loads.add(self)
        threading.Thread(target=self._settle, name=f"futures of {load_id}", daemon=True).start()

    def add(self, pickled: bytes) -> Future[Any]:
        """Raises BrokenExecutor once the load has failed."""
        with self._changed:
            if self._error is not None:
                raise BrokenExecutor(f"the load of this executor ended early: {self._error}") from self._error
            if self._is_closed:  # at the end of the interpreter
                raise RuntimeError("cannot submit calls after shutdown")
            future: Future[Any] = Future()
            self._waiting.append((future, pickled))
            self._changed.notify()
            return future

    def close(self, *, cancel_futures: bool = False) -> None:
        """Seal the load after the calls that wait, or without them."""
        with self._changed:
            self._is_closed = True
            dropped = [future for future, _ in self._waiting] if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            self._changed.notify()
        for future in dropped:
            future.cancel()
            future.set_running_or_notify_cancel()

    def join(self) -> None:
        """Wait until all futures are done. `Thread.join` would not wait again after an interrupt."""
        self._settled.wait()

    def cancel(self) -> None:
        self._results.close()

    def _next_call(self) -> bytes:
        """The next call to send. Waits for it; empty after the last one."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return b""
                future, pickled = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    self._sent[self._num_sent] = future
                    self._num_sent += 1
                    return pickled

    def _settle(self) -> None:
        error: BaseException = LoadWasCancelled(self._load_id, "its client cancelled it")
        try:
            for result in self._results:
                with self._changed:
                    future = self._sent.pop(result.index)
                try:
                    future.set_result(self._results.value_of(result))
                except BaseException as raised:  # also what unpickling raises
                    future.set_exception(raised)
        except BaseException as raised:
            error = raised
        self._results.close()
        with self._changed:
            waiting = [future for future, _ in self._waiting if future.set_running_or_notify_cancel()]
            left = [*self._sent.values(), *waiting]
            self._waiting.clear()
            self._sent.clear()
            self._error = error if left or not self._is_closed else None
            self._is_closed = True
            self._changed.notify()
        for future in left:
            future.set_exception(error)
        _open_loads.discard(self)
        self._settled.set()


_open_loads: set[_ExecutorLoad] = set()


def _await_ends(loads: list[_ExecutorLoad]) -> None:
    """Wait until all futures are done. Ctrl-C cancels the loads; a second one ends the wait for that."""
    try:
        for load in loads:
            load.join()
    except KeyboardInterrupt:
        for load in loads:
            load.cancel()
        for load in loads:
            load.join()
        raise


def _await_open_loads() -> None:
    """Wait for all calls at the interpreter's end, while threads can still start, or cancel them after Ctrl-C."""
    loads = list(_open_loads)
    for load in loads:
        load.close()
        if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
            load.cancel()
    _await_ends(loads)


# `atexit` is too late: threads no longer start. The executors of concurrent.futures use this hook, too. Its functions
# are called in reverse order, and this one needs the thread pool that looks up names, hence the import above.
threading._register_atexit(_await_open_loads)  # pyright: ignore


# --- joblib registration ------------------------------------------------------------------------------
# Makes the joblib backend known. Imports joblib only when it is called.


def register_joblib() -> None:
    """Register the backend "elasticflow" with joblib: `joblib.parallel_config(backend="elasticflow")` selects it.

    Further arguments of `parallel_config` are options of `PaddingExecutor`. Raises MissingExtra without joblib.
    """
    if find_spec("joblib") is None:
        raise MissingExtra("elasticflow.register_joblib", "joblib", "joblib")
    import joblib.parallel  # pyright: ignore[reportMissingTypeStubs]

    from elasticflow.sdk.joblib_backend import ElasticFlowBackend

    joblib.parallel.register_parallel_backend("elasticflow", ElasticFlowBackend)  # pyright: ignore[reportUnknownMemberType]
