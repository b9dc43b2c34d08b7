"""The time of a machine that is lent for minutes: parts one after another, each ended at its limit with all it started.

A part is a process in a session of its own. What it starts, also in further sessions, inherits a mark in its
environment, by which it is found and killed. Only the standard library and psutil are imported here, because a bare
machine has the project's other libraries only later.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

MARK = "BENCHMARKS_GPU_PART"  # variable of all processes of a part
_GRACE_S = 3.0  # from SIGTERM to SIGKILL
_GONE_S = 10.0  # after SIGKILL; longer only in a system call of the driver
_POLL_S = 0.05
_ROOM = 1.3  # times its estimate a part may take


@dataclass(frozen=True, slots=True)
class Ended:
    """problem: "" if the process ended by itself, with 0. left_behind: processes that it had not ended."""

    took_s: float
    problem: str = ""
    left_behind: int = 0


@dataclass(slots=True)
class Running:
    """A started part. limit_s: after which it is stopped. leave_s: that its processes may outlive its first one."""

    process: subprocess.Popen[bytes]
    mark: str
    began_s: float
    limit_s: float
    leave_s: float = 15.0

    def wait(self) -> Ended:
        """Return once nothing of it runs."""
        problem = ""
        try:
            code = self.process.wait(max(0.0, self.began_s + self.limit_s - time.monotonic()))
            problem = f"it ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"stopped after {self.limit_s:.0f} s"
        left = 0 if problem else len(self._left_behind())
        if survivors := self.end():
            problem = f"{problem} and SIGKILL does not end {survivors}: restart the machine".removeprefix(" and ")
        return Ended(time.monotonic() - self.began_s, problem, left)

    def _left_behind(self) -> list[psutil.Process]:
        """Helpers of multiprocessing end by themselves soon after the process that they served."""
        give_up_s = time.monotonic() + self.leave_s
        while (left := marked(self.mark)) and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
        return left

    def end(self) -> list[int]:
        """Stop all its processes: SIGTERM to its group, then SIGKILL to the group and to each with the mark.

        Returns those that run nevertheless.
        """
        group = self.process.pid
        if self.process.poll() is None:
            _signal_group(group, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_S)
        _signal_group(group, signal.SIGKILL)
        give_up_s = time.monotonic() + _GONE_S
        while processes := marked(self.mark):  # repeated: one may have forked meanwhile
            if time.monotonic() > give_up_s:
                return [process.pid for process in processes]
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(_POLL_S)
        self.process.wait()
        return []


@dataclass(slots=True)
class Lease:
    """seconds: in all. environment: of each part. log: gets all output."""

    seconds: float
    environment: Mapping[str, str]
    log: IO[bytes]
    now_s: Callable[[], float] = time.monotonic
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.now_s()

    @property
    def used_s(self) -> float:
        return self.now_s() - self._began_s

    @property
    def left_s(self) -> float:
        """The time that is left, without the time to end a part that hangs."""
        return max(0.0, self.seconds - self.used_s - _GRACE_S)

    def refusal(self, needs_s: float) -> str:
        """Why a part that needs so long does not start; "" if it does."""
        return "" if needs_s <= self.left_s else f"needs {needs_s:.0f} s, {self.left_s:.0f} s left"

    def start(self, name: str, command: Sequence[str | Path], *, needs_s: float, patience: float = _ROOM) -> Running:
        """patience: times the estimate, as long as the lease lasts."""
        mark = f"{os.getpid()}-{name}"
        self.log.write(f"--- {name}, {self.used_s:.0f} s after the beginning\n".encode())
        self.log.flush()
        process = subprocess.Popen(
            command,
            env={**self.environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return Running(process, mark, time.monotonic(), min(patience * needs_s, self.left_s))


def marked(mark: str) -> list[psutil.Process]:
    """Running processes of a part."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
