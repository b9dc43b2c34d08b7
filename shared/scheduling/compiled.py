"""One way to compile a function of numbers and arrays: types stay as written, machine code is kept on disk."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from numpy.typing import NDArray

_HERE = Path(__file__).parent


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


# numba keeps code by file, and misses a change in a function that is called from another file: so by all files here
_settings = cast(Any, numba).config
if not _settings.CACHE_DIR:
    _settings.CACHE_DIR = str(_HERE / "__pycache__" / f"compiled-{_sources_digest()}")

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile at the first call; the next process loads what this one compiled (numba)."""
    return cast(_Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))  # pyright: ignore[reportUnknownMemberType]
