"""What an isolated process sees of the machine's folders. In a process of its own: this one has threads."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.namespaces import skip_without_namespaces

ISOLATED = """
import os, sys
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.runtime.process.isolation.isolated_process import enter_isolation, fork_isolated
from elasticflow.shared.runtime.process.isolation.machine_check import python_folders

isolation = Isolation(namespaces=True, readable=(*python_folders(), sys.argv[1]))
pid = fork_isolated(isolation)
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
enter_isolation(isolation).close()
print(sorted(os.listdir("/tmp")), os.listdir(sys.argv[1]), os.access("/tmp", os.W_OK), flush=True)
os._exit(0)
"""


def test_a_readable_folder_in_tmp_is_all_that_is_seen_of_it() -> None:
    skip_without_namespaces()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, tempfile.TemporaryDirectory(dir="/tmp") as other:
        shown = Path(folder)
        shown.chmod(0o755)  # workers have another user
        (shown / "data").touch()
        command = [sys.executable, "-c", ISOLATED, folder]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        # A checkout in /tmp is seen as well: workers import from it.
        assert shown.name in run.stdout
        assert Path(other).name not in run.stdout
        assert run.stdout.endswith("['data'] True\n")


FAKE_GPUS = """
import os, stat
from elasticflow.services.executor.processes.worker_isolation import WorkerIsolation
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.runtime.process.isolation import system_calls
from elasticflow.shared.runtime.process.isolation.isolated_process import enter_isolation, fork_isolated
from elasticflow.shared.runtime.process.isolation.machine_check import python_folders

machine = system_calls.fork_into_namespaces(system_calls.CLONE_NEWNS)
if machine:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(machine, 0)[1]))
system_calls.make_mounts_private()
system_calls.mount_memory("/dev", num_bytes=1 << 20)
NULL = os.makedev(1, 3)
for name in ("null", "zero", "urandom", "nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(4))):
    os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, NULL)
os.makedirs("/dev/nvidia-caps")
os.makedirs("/dev/shm")

of_node = Isolation(namespaces=True, readable=python_folders())
node = WorkerIsolation(of_node, gpu_files=("nvidia3", "nvidia0", "nvidia1"))
for slots in ((), (0,), (0, 2)):
    isolation = node.of_process(slots)
    pid = fork_isolated(isolation)
    if pid == 0:
        enter_isolation(isolation).close()
        found = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
        try:
            os.mknod("/dev/nvidia2", stat.S_IFCHR | 0o666, NULL)
            found.append("made by itself")
        except OSError:
            pass
        print(*slots, ":", *found, flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices")
def test_a_worker_has_the_devices_of_its_own_gpus_and_makes_no_others() -> None:
    skip_without_namespaces()
    run = subprocess.run([sys.executable, "-c", FAKE_GPUS], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    of_all = "nvidia-caps nvidia-uvm"
    assert run.stdout.splitlines() == [
        ":",
        f"0 : {of_all} nvidia3 nvidiactl",
        f"0 2 : {of_all} nvidia1 nvidia3 nvidiactl",
    ]
