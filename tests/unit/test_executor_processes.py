"""What an executor sees of its workers' processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from services.executor.processes import cpu_s_if_stopped

PATIENCE_S = 30.0


@pytest.fixture
def busy() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    yield process.pid
    process.kill()
    process.wait()


def stopped(pid: int, *, not_at_s: float = 0.0) -> float:
    """By a signal: after how much computing, and more than so much."""
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        os.kill(pid, signal.SIGSTOP)
        if (cpu_s := cpu_s_if_stopped(pid)) is not None and cpu_s > not_at_s:
            return cpu_s
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("it does not compute, or does not stop")


def test_one_that_was_stopped_twice_is_told_from_one_that_still_is(busy: int) -> None:
    assert cpu_s_if_stopped(busy) is None
    first_s = stopped(busy)
    assert cpu_s_if_stopped(busy) == first_s
    os.kill(busy, signal.SIGCONT)
    assert stopped(busy, not_at_s=first_s) > first_s


def test_one_that_is_gone_is_not_stopped(busy: int) -> None:
    os.kill(busy, signal.SIGKILL)
    assert cpu_s_if_stopped(busy) is None
