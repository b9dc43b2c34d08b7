"""How a process imports its libraries: without garbage collection, with a clear error if an extra is missing, with an
end at once at Ctrl-C, and some of them not before they are used."""

import contextlib
import gc
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Generator
from types import ModuleType
from typing import Any

INTERRUPTED = 130  # exit code, as shells report Ctrl-C
NOTHING_DONE = "\neflow: ended by Ctrl-C before it began: nothing was sent or changed\n"


@contextlib.contextmanager
def ending_at_interrupt(words: str = "") -> Generator[None]:
    """End this process at Ctrl-C with exit code 130, without any cleanup, and with these words on standard error.

    KeyboardInterrupt would print a traceback, or be lost in a callback of the import system. There is no effect if
    SIGINT is ignored or handled otherwise, and in other threads.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def end(*_: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(2, words.encode())
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def without_gc() -> Generator[None]:
    """Disable garbage collection during the imports, and exempt the imported objects from later collections.

    Each saves a tenth of the start. If a library of an extra is missing, the process names the extra and exits with 2.
    """
    gc.disable()
    try:
        yield
    except ModuleNotFoundError as error:
        from elasticflow.shared.extras import missing_extra

        missing = missing_extra(error, _this_process())
        if missing is None:
            raise
        print(missing, file=sys.stderr)
        sys.exit(2)
    finally:
        gc.freeze()
        gc.enable()


class _Unused(ModuleType):
    """Stands for a library until something of it is used. importlib's lazy modules are executed by a second import."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_when_used(name: str) -> None:
    """Let imports of this library return at once; the first use of the module executes it. No effect if it is missing.

    For libraries that another one imports for something that few need.
    """
    if name not in sys.modules and (spec := importlib.util.find_spec(name)) is not None:
        sys.modules[name] = module = _Unused(name)
        module.__spec__ = spec


def _this_process() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return f"python -m {spec.parent or spec.name}" if spec is not None else sys.argv[0]
