"""A forked process that installs the packages of a job. It has the rights of a worker: packages run code of their own
while they are built."""

import os
import socket
import traceback
from pathlib import Path
from typing import NoReturn

from elasticflow.services.executor.worker.packages.installers import CannotInstall, install
from elasticflow.services.executor.worker.packages.loaded_packages import loaded_packages, refused_lines, violated_in
from elasticflow.shared.messages.worker_protocol.frames import encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.preparing import (
    RESULT,
    FromPreparer,
    InstallPackages,
    NotPrepared,
    Prepared,
)
from elasticflow.shared.runtime.process.isolation.isolated_process import WorkerFolders

_NICENESS = 10  # workers come first
_MAX_TEXT = 8_000  # characters of an error


def install_packages(sock: socket.socket, order: InstallPackages, folders: WorkerFolders) -> NoReturn:
    """Reply once, and exit. Killed by its executor if it takes too long or fills the disk."""
    folders.show(writable=[order.folder])
    folders.close()
    os.nice(_NICENESS)
    sock.sendall(encode_frame(_reply(order)))
    os._exit(ExitCode.DONE)


def _reply(order: InstallPackages) -> FromPreparer:
    target, work = Path(order.folder) / RESULT, Path(order.folder) / "work"
    try:
        for folder in (target, work):
            folder.mkdir()
        loaded = loaded_packages()
        if refused := refused_lines(order.requirements, loaded):
            return _refusal(refused)
        install(order.requirements, target, work, loaded)
        if violated := violated_in(target, loaded):
            return _refusal(violated)
    except CannotInstall as error:
        return NotPrepared(error=str(error)[-_MAX_TEXT:])
    except Exception as error:  # e.g. a report that this version cannot read
        traceback.print_exc()
        return NotPrepared(error=f"{type(error).__name__}: {error}"[:_MAX_TEXT])
    return Prepared()


def _refusal(problems: list[str]) -> NotPrepared:
    said = "; ".join(problems)
    return NotPrepared(error=f"{said}; require a version that goes with it"[:_MAX_TEXT])
