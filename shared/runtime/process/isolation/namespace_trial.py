"""`python -m ...namespace_trial`: exit code 0 if a process of this machine can enter namespaces of its own."""

import os
import sys

from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.runtime.process.isolation.isolated_process import enter_isolation, fork_isolated
from elasticflow.shared.runtime.process.isolation.machine_check import python_folders


def exit_code() -> int:
    """That of a process in namespaces. Raises OSError if it cannot be made."""
    isolation = Isolation(namespaces=True, readable=python_folders())
    pid = fork_isolated(isolation)
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        enter_isolation(isolation).close()
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    try:
        sys.exit(exit_code())
    except OSError as error:
        sys.exit(str(error))
