"""Finds and kills worker processes, so that none outlives its executor. Blocking: call it from a thread.

Every worker inherits marks in its environment that name its node; they remain when its parents are gone.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import psutil

from elasticflow.shared.errors import Stop

_POLL_S = 0.01


@dataclass(eq=False)
class WorkersSurvived(Stop):
    """SIGKILL does not end these processes, e.g. in a driver's system call: their GPUs are not free."""

    pids: list[int]

    MESSAGE: ClassVar[str] = "processes {pids} do not end on SIGKILL; their GPUs are not free: restart the node"


def cpu_s_if_stopped(pid: int) -> float | None:
    """CPU time of a process that a signal has stopped; None if it is gone or not stopped."""
    try:
        process = psutil.Process(pid)
        return sum(process.cpu_times()[:2]) if process.status() == psutil.STATUS_STOPPED else None
    except psutil.Error:
        return None


def marked_processes(marks: Mapping[str, str]) -> list[psutil.Process]:
    """Running processes whose environment holds all of these marks."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and marks.items() <= process.environ().items():
                found.append(process)
    return found


def kill_marked(marks: Mapping[str, str], *, timeout_s: float = 10.0) -> list[int]:
    """SIGKILL to all marked processes until none runs. Returns their pids; raises WorkersSurvived."""
    killed: dict[int, None] = {}
    give_up_s = time.monotonic() + timeout_s
    while processes := marked_processes(marks):  # repeated: one may have forked in between
        if time.monotonic() > give_up_s:
            raise WorkersSurvived([process.pid for process in processes])
        for process in processes:
            killed[process.pid] = None
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_POLL_S)
    return list(killed)


def wait_until_gone(pids: Iterable[int], *, timeout_s: float = 10.0) -> None:
    """Return once none of these processes runs. Raises WorkersSurvived."""
    give_up_s = time.monotonic() + timeout_s
    while alive := [pid for pid in pids if _is_alive(pid)]:
        if time.monotonic() > give_up_s:
            raise WorkersSurvived(alive)
        time.sleep(_POLL_S)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
