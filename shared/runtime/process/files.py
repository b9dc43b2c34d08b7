"""Files as services keep them: durable, private, regular ones only, and read from their beginning."""

import contextlib
import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from elasticflow.shared.errors import BadSettings


def write_durably(path: Path, content: bytes) -> None:
    """Returns once the content is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def rename_durably(path: Path, name: Path) -> None:
    """Rename within the same folder. The new name survives a crash of the machine, too."""
    path.replace(name)
    folder = os.open(name.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# --- file beginning ------------------------------------------------------------------------------------
# Gives the disk the beginning of a file back, as a hole: what is behind it keeps its place (docs/adr/0073).
#
# Writers that append go on, and a reader's offset stays valid, because no byte moves.

BLOCK_BYTES = 64 * 1024  # a multiple of the blocks of all usual filesystems: no block is in part a hole
_KEEP_SIZE, _PUNCH_HOLE = 0x1, 0x2
_libc = ctypes.CDLL(None, use_errno=True)


class NoHoles(OSError):
    """This filesystem has none."""


def free_beginning(file: int, up_to: int) -> None:
    """Free whole blocks of an open file in front of `up_to`. Raises NoHoles, OSError."""
    length = up_to - up_to % BLOCK_BYTES
    if not length:
        return
    flags = _PUNCH_HOLE | _KEEP_SIZE
    while _libc.fallocate(file, flags, ctypes.c_longlong(0), ctypes.c_longlong(length)) != 0:
        error = ctypes.get_errno()
        if error in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise NoHoles(error, os.strerror(error))
        if error != errno.EINTR:
            raise OSError(error, os.strerror(error))


def kept_from(file: int, offset: int) -> int:
    """The offset, or the end of the hole that it is in. Raises OSError."""
    num_bytes = os.fstat(file).st_size  # before the search: the file may grow
    if offset >= num_bytes:
        return offset
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return num_bytes  # nothing but a hole follows


# --- Files that settings name, and those among them that only their owner may read ---------------------

_TOKEN_BYTES = 32


def file_named(environment: Mapping[str, str], name: str) -> Path | None:
    """The file that this variable names; None if it is unset or empty."""
    value = environment.get(name, "")
    return Path(value).absolute() if value else None


def keep_token(file: Path) -> None:
    """Make a file with a random token if it is absent: complete from the first moment, readable by its owner only."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(secrets.token_hex(_TOKEN_BYTES) + "\n")
        os.link(fresh, file)
    except FileExistsError:  # of another process, at the same time
        pass
    finally:
        fresh.unlink()


def private_bytes(name: str, file: Path) -> bytes:
    """The content of a file that no other user can read. name: of its setting. Raises BadSettings."""
    if problem := readable_by_others(file):
        raise BadSettings((f"{name}={file}: {problem}",))
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadSettings((f"{name}={file}: cannot be read ({error})",)) from None


def readable_by_others(file: Path) -> str | None:
    """Why a file is no secret, and what to do; None if it is one, or is not there."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return None
    return f"mode {mode:04o} lets other users read it; run: chmod 600 {file}" if mode & 0o077 else None


# --- Opens files in folders that jobs can write, where any name may be a link or a FIFO ----------------

_NOT_REGULAR = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link; a socket, or a FIFO without a reader; a folder


class NotRegularFile(OSError):
    """A link, FIFO, socket or folder has the name."""


@contextlib.contextmanager
def open_regular_file(path: Path, flags: int = os.O_RDONLY, mode: int = 0o644) -> Iterator[int]:
    """The descriptor of this file, never of another one that a link names, and never waiting for a FIFO's other end.

    Raises NotRegularFile, OSError.
    """
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise NotRegularFile(error.errno, "not a regular file", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise NotRegularFile(errno.EINVAL, "not a regular file", str(path))
        yield file
    finally:
        os.close(file)
