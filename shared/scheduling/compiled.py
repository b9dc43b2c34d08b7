"""One way to compile a function of numbers and arrays: types stay as written, machine code is kept on disk."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.machine_code import folder


@contextmanager
def _hidden(package: str) -> Generator[None]:
    """As if it was not installed; not where it is loaded already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = cast(Any, None)  # what `import` takes as a no
    try:
        yield
    finally:
        del sys.modules[package]


# numba looks for scipy's BLAS, for products that no loop here takes: a quarter of the start of a service.
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
    """Compile at the first call; the next process loads what this one compiled (numba)."""
    return cast(_Function, numba.njit(cache=_KEPT is not None, nogil=True, error_model="numpy")(function))  # pyright: ignore[reportUnknownMemberType]
