"""Compilation of functions over numbers and arrays with numba; machine code is cached on disk."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.machine_code import folder


@contextmanager
def _hidden(package: str) -> Generator[None]:
    """Hide a package from imports, unless it is already loaded."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = cast(Any, None)  # `import` then raises ImportError
    try:
        yield
    finally:
        del sys.modules[package]


# numba imports scipy for BLAS, which no loop here uses: a quarter of the start of a service.
with _hidden("scipy"):
    import numba  # pyright: ignore[reportMissingTypeStubs]

    import_module("numba.np.arraymath")

_KEPT = folder()
if _KEPT is not None:
    cast(Any, numba).config.CACHE_DIR = str(_KEPT)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile at the first call; later processes load the cached machine code (numba)."""
    return cast(_Function, numba.njit(cache=_KEPT is not None, nogil=True, error_model="numpy")(function))  # pyright: ignore[reportUnknownMemberType]
