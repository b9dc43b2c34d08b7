"""Gives the disk the beginning of a file back, as a hole: what is behind it keeps its place (docs/adr/0073).

Writers that append go on, and a reader's offset stays valid, because no byte moves.
"""

import ctypes
import errno
import os

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
