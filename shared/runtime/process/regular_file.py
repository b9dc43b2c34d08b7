"""Opens files in folders that jobs can write, where any name may be a link or a FIFO."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

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
