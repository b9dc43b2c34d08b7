"""A child of the fork server: its first message says if it becomes a worker, a runner, an installer or a fetcher."""

import contextlib
import socket
from typing import NoReturn, get_args

from elasticflow.services.executor.worker.loop.run_worker import run_worker
from elasticflow.services.executor.worker.preparation.fetch_data import fetch_data
from elasticflow.services.executor.worker.preparation.install_packages import install_packages
from elasticflow.services.executor.worker.tasks.run_tasks import run_tasks
from elasticflow.shared.messages.worker_protocol.forking import FetchData, InstallPackages, ToPreparer
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader
from elasticflow.shared.messages.worker_protocol.task_running import RunTasks
from elasticflow.shared.messages.worker_protocol.to_worker import ToWorker
from elasticflow.shared.runtime.process.isolation.isolated_process import WorkerFolders
from elasticflow.shared.runtime.process.process_termination import kill_own_process_group


def run_forked(sock: socket.socket, folders: WorkerFolders) -> NoReturn:
    """Wait for the first message, without a timeout, and do what it says. sock: the channel to the executor."""
    frames = FrameReader[ToWorker | RunTasks | ToPreparer](*get_args(ToWorker), RunTasks, *get_args(ToPreparer))
    received = b""
    first: ToWorker | RunTasks | ToPreparer | None = None
    while first is None:
        data = _receive(sock)
        received += data
        try:
            first = next(frames.feed(data), None)
        except BrokenChannel:  # a worker reports it
            break
    if isinstance(first, RunTasks):
        run_tasks(sock, first, received, folders)
    if isinstance(first, InstallPackages):
        install_packages(sock, first, folders)
    if isinstance(first, FetchData):
        fetch_data(sock, first, folders)
    run_worker(sock, received, folders)


def _receive(sock: socket.socket) -> bytes:
    """The next bytes. Ends this process if the executor is gone."""
    with contextlib.suppress(OSError):
        if data := sock.recv(65_536):
            return data
    kill_own_process_group()
    raise AssertionError("SIGKILL has no effect")
