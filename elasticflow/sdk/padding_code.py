"""The code of a padding load: what is sent with it, what nodes import from installed packages, and pickled calls."""

import inspect
import io
import pickle
import re
import site
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from elasticflow.client.command_requests import Package
from elasticflow.sdk.packaging import PackagingFailed, package
from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.worker_protocol.task_running import MAX_TASK_BYTES
from elasticflow.shared.runtime.process.clock import fresh_id

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
