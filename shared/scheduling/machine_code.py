"""Where the machine code of these sources is kept on disk, and whether all of it is there. Needs no compiler."""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Generator
from functools import cache
from importlib.metadata import version
from pathlib import Path

_HERE = Path(__file__).parent


def _digest() -> str:
    """Of the sources, and of the compiler's version."""
    digest = hashlib.sha256(version("numba").encode())
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@cache
def folder() -> Path | None:
    """Beside the sources, as made when they were installed.

    numba keeps code by file, and misses a change in a function that is called from another file: hence a folder for
    each digest of all files. It also wants to write where it reads: who may not do so here works on a copy of their
    own. None: there is nowhere to write, and each process compiles for itself.
    """
    name = f"compiled-{_digest()}"
    installed = Path(os.environ.get("NUMBA_CACHE_DIR") or _HERE / "__pycache__") / name
    if _is_writable(installed):
        return installed
    with contextlib.suppress(OSError, RuntimeError):  # no such folder, no home
        own = Path.home() / ".cache" / "elasticflow" / name
        if not own.exists() and installed.exists():
            _copy_at_once(installed, own)
        if _is_writable(own):
            return own
    return None


def _is_writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def _copy_at_once(source: Path, destination: Path) -> None:
    """Nobody sees half a copy, however many processes start together."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as made:
        copy = shutil.copytree(source, Path(made) / destination.name)
        with contextlib.suppress(OSError):  # another was first
            copy.rename(destination)


@contextlib.contextmanager
def compiling_alone() -> Generator[None]:
    """One process of this installation at a time: the next then finds the code, and need not compile."""
    if (kept := folder()) is None:
        yield
        return
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_complete() -> bool:
    """Whether this machine has compiled everything: code of another processor is none, where a folder is shared."""
    return (kept := folder()) is not None and _mark(kept).exists()


def note_complete() -> None:
    if (kept := folder()) is not None:
        _mark(kept).touch()


def _mark(kept: Path) -> Path:
    return kept / f"complete-on-{platform.node()}"


def forget_older_code() -> None:
    """Remove what earlier versions of these sources left here."""
    if (kept := folder()) is not None:
        for other in kept.parent.glob("compiled-*"):
            if other != kept:
                shutil.rmtree(other, ignore_errors=True)
