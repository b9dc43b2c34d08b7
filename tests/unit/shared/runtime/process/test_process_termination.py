import os
import select
import signal
import subprocess
import sys

import pytest

from elasticflow.shared.runtime.process.process_termination import preexec_die_with_parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux only")

CHILD = (
    "import time; from elasticflow.shared.runtime.process.process_termination import die_with_parent;"
    "{call}; print('up', flush=True); time.sleep(60)"
)
PARENT = (
    "import subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE);"
    "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)"
)


def ended(pidfd: int) -> bool:
    readable, _, _ = select.select([pidfd], [], [], 20.0)
    os.close(pidfd)
    return bool(readable)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_dies_with_its_parent(sign: signal.Signals) -> None:
    child = CHILD.format(call="die_with_parent()")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    watch = os.pidfd_open(int(parent.stdout.readline()))
    parent.send_signal(sign)
    parent.communicate()
    assert ended(watch)


def test_a_child_whose_parent_is_gone_already_does_not_begin() -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD.format(call="die_with_parent(parent_pid=1 << 22)")],
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout == b""


def test_a_child_that_another_process_was_to_start_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1 << 22)
    other = preexec_die_with_parent()
    monkeypatch.undo()
    child = subprocess.run([sys.executable, "-c", "print('up')"], preexec_fn=other, capture_output=True, check=False)
    assert child.returncode == -signal.SIGKILL
