"""The TCP connections of this process: gloo opens and closes its own, and tells nobody which they are."""

import os
import socket
import stat
from contextlib import suppress


def connections() -> set[tuple[int, int]]:
    """TCP sockets of this process that are connected: (file descriptor, inode)."""
    found: set[tuple[int, int]] = set()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed by another thread, or no socket
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and _is_connection(int(name)):
                found.add((int(name), status.st_ino))
    return found


def _is_connection(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return copy.family in (socket.AF_INET, socket.AF_INET6) and not listens


def shut_down(descriptor: int) -> None:
    """For both ends; nothing if it was closed meanwhile."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
