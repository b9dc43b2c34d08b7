"""How an executor recognises a worker process that a signal has stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from elasticflow.services.executor.processes.fork_server_client import cpu_s_if_stopped

TIMEOUT_S = 30.0


@pytest.fixture
def busy() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    yield process.pid
    process.kill()
    process.wait()


def stopped(pid: int, *, not_at_s: float = 0.0) -> float:
    """Stop the process by a signal. Returns its CPU time, which is more than not_at_s."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < give_up_s:
        os.kill(pid, signal.SIGSTOP)
        while (cpu_s := cpu_s_if_stopped(pid)) is None:  # it stops when it gets a core
            assert time.monotonic() < give_up_s, "the process does not stop"
            time.sleep(0.01)
        if cpu_s > not_at_s:
            return cpu_s
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("the process does not compute")


def test_a_process_stopped_twice_differs_from_one_stopped_throughout(busy: int) -> None:
    assert cpu_s_if_stopped(busy) is None
    first_s = stopped(busy)
    assert cpu_s_if_stopped(busy) == first_s
    os.kill(busy, signal.SIGCONT)
    assert stopped(busy, not_at_s=first_s) > first_s


def test_a_process_that_is_gone_is_not_stopped(busy: int) -> None:
    os.kill(busy, signal.SIGKILL)
    assert cpu_s_if_stopped(busy) is None
