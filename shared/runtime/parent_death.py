"""A child dies with its parent, however the parent dies: no kill -9 leaves an orphan.

On Linux the kernel does it. It watches the *thread* that started the child, so start children from a thread
that lives as long as the process (the main thread, not one of a pool). Elsewhere a Python child watches its
parent's process id; a foreign program is only stopped by an orderly exit of its launcher.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5

# Loaded here, before any fork: between fork and exec a child may not import or allocate at leisure.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent_pid: int | None = None) -> None:
    """Call in the child. parent_pid: who should be the parent; if it is not, it died before we could ask."""
    expected_pid = os.getppid() if parent_pid is None else parent_pid
    if _LIBC is not None:
        _ask_kernel(expected_pid)
    else:
        threading.Thread(target=_watch, args=(expected_pid,), name="parent-watch", daemon=True).start()


def preexec_die_with_parent() -> Callable[[], None] | None:
    """For `subprocess.Popen(preexec_fn=...)`, made in the parent: only system calls between fork and exec."""
    if _LIBC is None:
        return None
    parent_pid = os.getpid()
    return lambda: _ask_kernel(parent_pid)


def _ask_kernel(parent_pid: int) -> None:
    assert _LIBC is not None
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)
