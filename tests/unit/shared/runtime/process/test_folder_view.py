"""What an isolated process sees of the machine's folders. In a process of its own: this one has threads."""

import subprocess
import sys
import tempfile
from pathlib import Path

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
