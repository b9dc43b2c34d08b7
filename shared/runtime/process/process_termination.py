"""How child processes end: with their parent, however that dies, and as whole process groups.

On Linux the kernel ends a child whose parent dies. It watches the *thread* that started the child, so start children
from a thread that lives as long as the process (the main thread, not one of a pool). Elsewhere a Python child polls its
parent's process id; a foreign program ends only on an orderly exit of its parent.
"""

import contextlib
import ctypes
import glob
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Container

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PARENT_POLL_S = 0.5
_REAP_POLL_S = 0.001

# Loaded here, before any fork: between fork and exec a child may neither import nor allocate.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent_pid: int | None = None) -> None:
    """Call in the child. parent_pid: the expected parent; if another one is found, the expected parent has died."""
    expected_pid = os.getppid() if parent_pid is None else parent_pid
    if _LIBC is not None:
        _set_parent_death_signal(expected_pid)
    else:
        threading.Thread(target=_watch_parent, args=(expected_pid,), name="parent-watch", daemon=True).start()


def preexec_die_with_parent() -> Callable[[], None] | None:
    """The value of `subprocess.Popen(preexec_fn=...)`, made in the parent: only system calls between fork and exec."""
    if _LIBC is None:
        return None
    parent_pid = os.getpid()
    return lambda: _set_parent_death_signal(parent_pid)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, which can then reap them. Linux only; else no effect."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_process_group(leader_pid: int) -> None:
    """SIGKILL to a process group; no effect if it is gone. Does not wait."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
        os.killpg(leader_pid, signal.SIGKILL)


def kill_own_process_group() -> None:
    """SIGKILL to this process and its whole process group."""
    os.killpg(0, signal.SIGKILL)


def kill_and_reap_process_group(leader_pid: int, *, timeout_s: float) -> None:
    """SIGKILL to a group of children that are not yet reaped, then reap them. Returns after timeout_s at the latest.

    While the leader is unreaped, alive or a zombie, the kernel gives its process id to no other group.
    """
    kill_process_group(leader_pid)
    give_up_s = time.monotonic() + timeout_s
    with contextlib.suppress(ChildProcessError):  # all are reaped
        while time.monotonic() < give_up_s:
            if os.waitpid(-leader_pid, os.WNOHANG) == (0, 0):
                time.sleep(_REAP_POLL_S)


def end_adopted(kept: Container[int] = (), *, timeout_s: float) -> bool:
    """SIGKILL to all children of this process but these, and reap them, until no child is left. Linux only.

    Call `adopt_orphans` before: then what the children have left comes here, in whichever session it is. Returns False
    after timeout_s, with children left.
    """
    give_up_s = time.monotonic() + timeout_s
    while adopted := [pid for pid in _children() if pid not in kept]:
        if time.monotonic() > give_up_s:
            return False
        num_reaped = 0
        for pid in adopted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                num_reaped += os.waitpid(pid, os.WNOHANG) != (0, 0)
        if not num_reaped:  # a process that forks and ends, again and again, is caught in between: no pause
            time.sleep(_REAP_POLL_S)
    return True


def _children() -> list[int]:
    """The children of this process, zombies included.

    The kernel lists them in one step: a walk over all processes is slower than a chain of forks.
    """
    found: list[int] = []
    for file in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(file) as children:
            found += map(int, children.read().split())
    return found


def _set_parent_death_signal(parent_pid: int) -> None:
    assert _LIBC is not None
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)
