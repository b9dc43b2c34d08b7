"""What Python does at the end of a process: a worker ends by `os._exit`, so it does the same itself before.

Users' code relies on it: threads that still upload metrics, handlers of `atexit`, files that the interpreter closes.
"""

import atexit
import bz2
import gc
import gzip
import io
import logging
import lzma
import multiprocessing.util
import threading
import weakref
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

from elasticflow.shared.runtime.process.logs import log

AT_END_S = 60.0  # for a job that ends; less than the wait for a job without progress
ON_THE_WAY_S = 5.0  # for a worker that leaves, stops or fails: half of the executor's usual grace
_TEXTS = (io.TextIOWrapper,)
_CLOSED = (gzip.GzipFile, bz2.BZ2File, lzma.LZMAFile, zipfile.ZipFile)  # each writes its last bytes when it is closed
_BYTES = (io.BufferedWriter, io.BufferedRandom)


class ExitHandlers:
    """The exit handlers of this process, which serves one job."""

    def __init__(self) -> None:
        self._is_due = False
        self._running: threading.Thread | None = None
        self._before: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Users' code may run from now on. What the fork server has registered is not for this process."""
        self._is_due = True
        finalizers = cast(dict[Any, Any], getattr(weakref.finalize, "_registry", {}))
        for finalizer in list(finalizers):
            finalizer.atexit = False
        atexit._clear()
        for known in (logging.shutdown, getattr(multiprocessing.util, "_exit_function", None)):
            if known is not None:
                atexit.register(known)
        weakref.finalize._registered_with_atexit = False  # pyright: ignore[reportAttributeAccessIssue]

    def before(self, end: Callable[[], None]) -> None:
        """Call this before all else."""
        self._before.append(end)

    def run(self, timeout_s: float) -> None:
        """Wait for threads that are no daemons, call the handlers of `atexit`, write what files have buffered. Once:
        a second caller waits for the first. What takes longer is abandoned."""
        if self._is_due:
            self._is_due = False
            running = threading.Thread(target=self._run, name="exit handlers", daemon=True)
            try:
                running.start()
            except RuntimeError:  # the job has as many threads as it may: a stall bounds the time of this one
                with suppress(Exception):
                    self._run()
                return
            self._running = running
        if self._running is None:
            return
        self._running.join(timeout_s)
        if self._running.is_alive():
            log.warning("exit_handlers_abandoned", after_s=timeout_s)

    def _run(self) -> None:
        for end in self._before:
            end()
        for ends in reversed(getattr(threading, "_threading_atexits", [])):  # of thread pools
            ends()
        while (thread := next(_running_threads(), None)) is not None:
            thread.join()
        atexit._run_exitfuncs()
        _write_buffered()


def _running_threads() -> Iterator[threading.Thread]:
    """The running threads that users' code has started."""
    ours = (threading.main_thread(), threading.current_thread())
    for thread in threading.enumerate():
        if not (thread.daemon or thread in ours or getattr(thread, "ends_with_process", False)):
            yield thread


def _write_buffered() -> None:
    """The interpreter would close each of these files. Those that write into others come first."""
    alive = gc.get_objects()
    for kinds in (_TEXTS, _CLOSED, _BYTES):
        for file in (each for each in alive if issubclass(type(each), kinds)):
            with suppress(Exception):  # it is closed already, or its disk is full
                file.close() if kinds is _CLOSED else file.flush()


EXIT_HANDLERS = ExitHandlers()
