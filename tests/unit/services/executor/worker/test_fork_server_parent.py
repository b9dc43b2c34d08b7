"""What a worker has started ends, whatever its session and environment, and whichever process is killed first."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux only")

KEEPER = """
import os, subprocess, sys
from elasticflow.services.executor.worker.fork_server_parent import keep
from elasticflow.shared.runtime.process.process_termination import adopt_orphans

def serve(keeper):
    adopt_orphans()
    daemon = "setsid env -i sh -c '(sleep 600 </dev/null >/dev/null 2>&1 & echo $!)'"
    orphan = int(subprocess.run(["sh", "-c", daemon], capture_output=True, text=True, check=True).stdout)
    print(os.getpid(), orphan, flush=True)
    os.read(keeper, 1)  # until the keeper is gone
    print("the keeper is gone", flush=True)

keep(serve, control=int(sys.argv[1]))
"""

CHAIN = """
import os, sys
from elasticflow.shared.runtime.process.process_termination import adopt_orphans, end_adopted

adopt_orphans()
if os.fork() == 0:
    os.setsid()
    while True:  # each process of the chain ends at once
        if os.fork():
            os._exit(0)
os.wait()
kept = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
assert end_adopted((kept,), timeout_s=60.0)
os.kill(kept, 0)
assert end_adopted(timeout_s=60.0)
try:
    os.wait()
except ChildProcessError:
    print("no child is left")
"""


class Kept:
    """A keeper with its server, which has started a daemon without a mark."""

    def __init__(self) -> None:
        self.executor, control = socket.socketpair()
        with control:
            self.keeper = subprocess.Popen(
                [sys.executable, "-c", KEEPER, str(control.fileno())],
                pass_fds=(control.fileno(),),
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.keeper.stdout is not None
        self.server, self.daemon = map(int, self.keeper.stdout.readline().split())
        self.daemon_end = os.pidfd_open(self.daemon)


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept()
    yield made
    for pid in (made.keeper.pid, made.server, made.daemon):
        try:
            psutil.Process(pid).kill()
        except psutil.Error:
            continue
    made.keeper.communicate()
    os.close(made.daemon_end)
    made.executor.close()


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 60.0)[0])


@pytest.mark.parametrize("by", ["its own death", "the keeper's SIGTERM"])
def test_what_is_left_of_a_killed_server_ends_and_its_executor_learns_of_it(by: str, kept: Kept) -> None:
    if by == "its own death":
        os.kill(kept.server, signal.SIGKILL)
    else:
        kept.keeper.terminate()
    assert has_ended(kept.daemon_end)
    assert kept.keeper.wait(timeout=60.0) == 1
    kept.executor.settimeout(60.0)
    assert kept.executor.recv(1) == b""


def test_a_server_learns_of_the_death_of_its_keeper(kept: Kept) -> None:
    assert kept.keeper.stdout is not None
    kept.keeper.kill()
    assert kept.keeper.stdout.readline() == "the keeper is gone\n"


def test_a_chain_of_processes_that_fork_and_end_is_caught() -> None:
    run = subprocess.run([sys.executable, "-c", CHAIN], capture_output=True, text=True, timeout=200.0, check=False)
    assert run.stdout == "no child is left\n", run.stderr
