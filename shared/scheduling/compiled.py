"""One way to compile a function of numbers and arrays: types stay as written, machine code is kept on disk."""

import contextlib
import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from numpy.typing import NDArray

_HERE = Path(__file__).parent
_settings = cast(Any, numba).config


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path | None:
    """Where the machine code of these sources is kept: beside them, as made when they were installed.

    numba keeps code by file, and misses a change in a function that is called from another file: hence a folder for
    each digest of all files. It also wants to write where it reads: who may not do so here works on a copy of their
    own. None: there is nowhere to write, and each process compiles for itself.
    """
    name = f"compiled-{_sources_digest()}"
    installed = Path(_settings.CACHE_DIR or _HERE / "__pycache__") / name
    if _is_writable(installed):
        return installed
    with contextlib.suppress(OSError, RuntimeError):  # no such folder, no home
        own = Path.home() / ".cache" / "elasticflow" / name
        if not own.exists() and installed.exists():
            _copy_at_once(installed, own)
        if _is_writable(own):
            return own
    return None


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _copy_at_once(folder: Path, destination: Path) -> None:
    """Nobody sees half a copy, however many processes start together."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as made:
        copy = shutil.copytree(folder, Path(made) / destination.name)
        with contextlib.suppress(OSError):  # another was first
            copy.rename(destination)


CACHE_FOLDER = _cache_folder()
if CACHE_FOLDER is not None:
    _settings.CACHE_DIR = str(CACHE_FOLDER)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile at the first call; the next process loads what this one compiled (numba)."""
    keep = CACHE_FOLDER is not None
    return cast(_Function, numba.njit(cache=keep, nogil=True, error_model="numpy")(function))  # pyright: ignore[reportUnknownMemberType]


@contextlib.contextmanager
def compiling_alone() -> Generator[None]:
    """One process of this installation at a time: the next then finds the code, and need not compile."""
    if CACHE_FOLDER is None:
        yield
        return
    with (CACHE_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def forget_older_code() -> None:
    """Remove what earlier versions of these sources left here."""
    if CACHE_FOLDER is not None:
        for folder in CACHE_FOLDER.parent.glob("compiled-*"):
            if folder != CACHE_FOLDER:
                shutil.rmtree(folder, ignore_errors=True)
