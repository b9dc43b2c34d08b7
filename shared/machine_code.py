"""The cache of machine code on disk: where it is and whether it is complete. Needs no compiler."""

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

_SCHEDULING = Path(__file__).parent / "scheduling"


def _digest() -> str:
    """Digest of the sources and of the version of numba."""
    digest = hashlib.sha256(version("numba").encode())
    for source in sorted(_SCHEDULING.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@cache
def folder() -> Path | None:
    """The cache folder beside the sources; None if no folder is writable, so that each process compiles for itself.

    numba caches by file, and misses a change in a function that is called from another file. Therefore each digest of
    all files has its own folder. numba also writes where it reads: a user without write access uses a private copy.
    """
    name = f"compiled-{_digest()}"
    installed = Path(os.environ.get("NUMBA_CACHE_DIR") or _SCHEDULING / "__pycache__") / name
    if _is_writable(installed):
        return installed
    with contextlib.suppress(OSError, RuntimeError):  # no such folder, or no home folder
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
    """Copy atomically: no process sees a partial copy, however many start together."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as made:
        copy = shutil.copytree(source, Path(made) / destination.name)
        with contextlib.suppress(OSError):  # another process was first
            copy.rename(destination)


@contextlib.contextmanager
def compiling_alone() -> Generator[None]:
    """Let one process of this installation compile at a time; the next one finds the machine code."""
    if (kept := folder()) is None:
        yield
        return
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_complete() -> bool:
    """Whether this machine has compiled everything. Machine code of another host does not count in a shared folder."""
    return (kept := folder()) is not None and _mark(kept).exists()


def note_complete() -> None:
    if (kept := folder()) is not None:
        _mark(kept).touch()


def _mark(kept: Path) -> Path:
    return kept / f"complete-on-{platform.node()}"


def forget_older_code() -> None:
    """Remove the machine code of older versions of these sources."""
    if (kept := folder()) is not None:
        for other in kept.parent.glob("compiled-*"):
            if other != kept:
                shutil.rmtree(other, ignore_errors=True)
