"""The folder of a job, in which its processes work: a copy of what was sent with it, and what they write there.

The workers of a job on a node share it, and later ones find it as earlier ones have left it. So relative paths mean in
a job what they mean at home. A file of inputs names what was copied, and thereby which other files the job has written.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from elasticflow.services.executor.worker.process.users_code import enter_code, keep_source_lines
from elasticflow.shared.messages.job_spec import SCRIPT, TORCHRUN
from elasticflow.shared.messages.worker_protocol.from_worker import (
    ARTIFACT_FOLDER,
    ARTIFACT_VARIABLE,
    INPUTS_FILE,
    WORKING_FOLDER,
)
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.runtime.process.folder_tree import delete_folder
from elasticflow.shared.runtime.process.logs import log

_COPIED_AT_S = 315_532_800  # 1980, as in the archive: a file that a job changes never has this time


@contextmanager
def in_job_folder(assignment: Assignment) -> Iterator[Assignment]:
    """Work in the folder of the job, and import its code from there. All jobs find their artifact folder in a variable.
    The files of a profiling run are deleted.

    Yields the assignment with the folder of the training function's module as code_path.
    """
    code_path = assignment.code_path or os.getcwd()
    with _home_of(assignment) as home:
        name_artifact_folder(home)
        folder = home / WORKING_FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if assignment.spec.code_digest:
                copy_inputs(Path(code_path), home, assignment.spec.code_digest)
                code_path = str(folder)
            os.chdir(folder)
        except OSError as error:
            if assignment.spec.entry in (SCRIPT, TORCHRUN):
                raise
            log.warning("no_working_folder", folder=str(folder), reason=str(error))  # a class can do without
        yield enter_code(replace(assignment, code_path=code_path))


def name_artifact_folder(home: Path) -> None:
    """Name the artifact folder in the variable in which the job finds it."""
    with suppress(OSError):  # of a full disk; a job that writes no file does not need it
        (home / ARTIFACT_FOLDER).mkdir(parents=True, exist_ok=True)
    os.environ[ARTIFACT_VARIABLE] = str(home / ARTIFACT_FOLDER)


@contextmanager
def _home_of(assignment: Assignment) -> Iterator[Path]:
    """The folder of the job, or one of this profiling run."""
    home = Path(assignment.checkpoint_dir)
    profiling_runs = home / "profiling-run"
    if assignment.purpose == "train":
        delete_folder(profiling_runs)  # of killed workers
        yield home
        return
    try:
        with _until_last(profiling_runs / str(assignment.plan.generation)) as folder:
            try:
                yield folder
            except BaseException as error:
                keep_source_lines(error, folder)
                raise
    finally:
        with suppress(OSError):  # other workers still use it
            profiling_runs.rmdir()
            home.rmdir()


@contextmanager
def _until_last(folder: Path) -> Iterator[Path]:
    """A folder that workers share: the last one that leaves deletes it."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_SH)
        yield folder
    finally:
        with suppress(OSError):  # another worker holds it
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            delete_folder(folder)
        os.close(held)


def copy_inputs(code: Path, home: Path, code_digest: str) -> None:
    """Copy the code into the working folder of this home, unless another worker has. Raises OSError."""
    folder = home / WORKING_FOLDER
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_EX)
        if _copied_digest(home) == code_digest:
            return
        inputs = dict(_copies(code, folder))
        unfinished = home / f"{INPUTS_FILE}.unfinished"
        unfinished.write_text(json.dumps({"code_digest": code_digest, "files": inputs}))
        unfinished.replace(home / INPUTS_FILE)
    finally:
        os.close(held)


def _copied_digest(home: Path) -> str:
    """The digest of the code that was copied; "" if none was copied to the end."""
    try:
        known: Any = json.loads((home / INPUTS_FILE).read_text())
        return str(known["code_digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _copies(code: Path, folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Copy each file. Yields its path, and its size and time of change in nanoseconds."""
    for parent, names, files in os.walk(code):
        names[:] = [name for name in names if name != "__pycache__"]
        inside = Path(parent).relative_to(code)
        (folder / inside).mkdir(exist_ok=True)
        for name in files:
            target = folder / inside / name
            shutil.copyfile(Path(parent) / name, target)
            os.utime(target, (_COPIED_AT_S, _COPIED_AT_S))
            status = target.stat()
            yield (inside / name).as_posix(), (status.st_size, status.st_mtime_ns)
