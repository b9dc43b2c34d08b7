"""A fork that becomes a process in its own namespaces: two processes, the first of the namespaces and the worker.

The first process makes the view of folders, adds folders as the worker asks, reaps orphans and ends as the worker ends.
When it ends, for example by SIGKILL, the kernel ends all processes of its namespaces. The worker may ask only until it
closes its `WorkerFolders`, which it does before it runs users' code.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.runtime.process.isolation import system_calls
from elasticflow.shared.runtime.process.isolation.cgroups import enter_group, limit_worker
from elasticflow.shared.runtime.process.isolation.folder_view import FolderView
from elasticflow.shared.runtime.process.isolation.machine_check import python_folders
from elasticflow.shared.runtime.process.isolation.system_calls import filter_system_calls

UNPRIVILEGED_USER = 65_534  # of the workers of an executor that runs as root
SIGNAL_EXIT_CODE = 128  # added to the number of the signal that ended the worker
_MAX_REQUEST_BYTES = 65_536


class WorkerFolders:
    """The worker's way to its own folders. first_process: None for a worker that sees all folders."""

    def __init__(self, first_process: socket.socket | None = None) -> None:
        self._first_process = first_process

    def show(self, *, readable: Sequence[str] = (), writable: Sequence[str] = ()) -> None:
        """Make these folders visible; writable ones are made if they are absent. "" is left out. Raises OSError."""
        if self._first_process is None:
            return
        request = [[path for path in paths if path] for paths in (readable, writable)]
        self._first_process.send(json.dumps(request).encode())
        if error := self._first_process.recv(_MAX_REQUEST_BYTES):
            raise OSError(error.decode())

    def close(self) -> None:
        """Show no further ones. Idempotent."""
        if self._first_process is not None:
            self._first_process.close()
            self._first_process = None


def fork_isolated(isolation: Isolation) -> int:
    """Fork as os.fork, in a process with one thread. The child continues with `enter_isolation`. Raises OSError."""
    if not isolation.namespaces:
        return os.fork()
    flags = system_calls.CLONE_NEWPID | system_calls.CLONE_NEWNS
    flags |= 0 if isolation.shares_memory else system_calls.CLONE_NEWIPC
    flags |= system_calls.CLONE_NEWUSER if os.geteuid() else 0
    return system_calls.fork_into_namespaces(flags)


def enter_isolation(isolation: Isolation) -> WorkerFolders:
    """Isolate the child of `fork_isolated`, and return in the worker. Raises OSError if the machine refuses."""
    if isolation.cgroup:
        enter_group(Path(isolation.cgroup))
    if not isolation.namespaces:
        limit_worker(counts_processes=False)
        filter_system_calls()
        return WorkerFolders()
    user, group = os.geteuid(), os.getegid()
    if user:
        _map_user(user, group)
    owner = None if user else UNPRIVILEGED_USER
    view = FolderView(owner=owner, memory_bytes=isolation.memory_bytes, devices=isolation.devices)
    view.make(isolation.readable, isolation.hidden, shares_memory=isolation.shares_memory)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker_pid = os.fork()
    if worker_pid:
        theirs.close()
        _serve_as_first_process(view, ours, worker_pid)
    ours.close()
    _give_up_rights(user)
    return WorkerFolders(theirs)


def _give_up_rights(user: int) -> None:
    """Whatever this worker starts later has the rights of a user without any, in a user namespace of its own."""
    if not user:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED_USER, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
        os.setresuid(UNPRIVILEGED_USER, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
        system_calls.set_readable_by_others(True)  # by itself: another user id had reset it
        system_calls.enter_user_namespace()
        _map_user(UNPRIVILEGED_USER, UNPRIVILEGED_USER)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")  # in which it would have rights again
    limit_worker(counts_processes=True)
    system_calls.drop_capabilities()
    filter_system_calls()


def _map_user(user: int, group: int) -> None:
    """User and group keep their numbers in the user namespace."""
    process = Path("/proc/self")
    (process / "setgroups").write_text("deny")
    (process / "uid_map").write_text(f"{user} {user} 1")
    (process / "gid_map").write_text(f"{group} {group} 1")


def _serve_as_first_process(view: FolderView, worker: socket.socket, worker_pid: int) -> NoReturn:
    """Show folders until the worker closes its socket; then wait for its end."""
    while request := worker.recv(_MAX_REQUEST_BYTES):
        try:
            readable, writable = json.loads(request)
            view.show(readable, writable)
            worker.send(b"")
        except OSError as error:
            worker.send(str(error).encode())
    worker.close()
    with suppress(OSError):  # the worker has ended already
        view.close()
    _end_as(worker_pid)


def _end_as(worker_pid: int) -> NoReturn:
    """Reap orphans until the worker has ended. Process 1 cannot end by a signal of its own."""
    while True:
        pid, status = os.wait()
        if pid == worker_pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else SIGNAL_EXIT_CODE - code)


# --- trial ---------------------------------------------------------------------------------------------
# `python -m ...isolated_process`: exit code 0 if a process of this machine can enter namespaces of its own.


def _exit_code_of_trial() -> int:
    """The exit code of a process in namespaces. Raises OSError if it cannot be made."""
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
        sys.exit(_exit_code_of_trial())
    except OSError as error:
        sys.exit(str(error))
