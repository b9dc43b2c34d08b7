"""One way to compile a function of numbers and arrays: types stay as written, machine code is kept on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from numpy.typing import NDArray

from shared.scheduling.machine_code import folder

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
