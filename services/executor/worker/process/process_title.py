"""The title of a worker in `ps` and `top`: the name of its job, in place of the command of the fork server."""

import contextlib
import ctypes
import sys
from pathlib import Path

_PR_SET_NAME = 15
_ARG_START, _ARG_END = 48 - 3, 49 - 3  # fields of /proc/self/stat, counted behind the name of the process


def set_process_title(title: str, name: str) -> None:
    """title: shown by `ps -f`, cut to the length of the command line before. name: shown by `top`, 15 bytes of it.

    Linux only; else, and where the kernel hides the addresses, no effect.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < start < end:
            room = end - start
            ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
