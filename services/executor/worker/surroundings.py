"""Where a script runs: what it finds in its environment, its working directory and on its path."""

import os
import runpy
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from services.executor.worker.log_file import last_line_since, size_of_output
from shared.messages.job import SCRIPT, TORCHRUN, JobSpec
from shared.messages.to_worker import Assignment


@contextmanager
def at_home(assignment: Assignment) -> Iterator[None]:
    """A script works in the folder of its job; what a pre-run writes is thrown away."""
    if assignment.spec.entry not in (SCRIPT, TORCHRUN):
        yield
        return
    sys.path.insert(0, assignment.code_path or os.getcwd())
    with _folder_of(assignment) as folder:
        os.chdir(folder)
        yield


@contextmanager
def _folder_of(assignment: Assignment) -> Iterator[Path]:
    home = Path(assignment.checkpoint_dir)
    pre_runs = home / "pre-run"
    if assignment.purpose == "train":
        shutil.rmtree(pre_runs, ignore_errors=True)  # of workers that were killed
        folder = home / "files"
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    folder = pre_runs / str(assignment.rank)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # others are still there
            pre_runs.rmdir()
            home.rmdir()


def world_of_one(gpu_index: int) -> dict[str, str]:
    """What a script sees whose other workers are none of its business."""
    return {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": str(gpu_index),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }


def run_script(spec: JobSpec, environment: Mapping[str, str], **main_module: Any) -> None:
    """As `python -m` does, with the job's arguments. main_module: names that the script finds in its main module.

    Where it ends with a bare number, why is what it has put out: an argument that is wrong, for one (argparse).
    """
    before = size_of_output()
    name = module_of(spec)
    os.environ.update(environment)
    sys.argv = [name, *spec.arguments]
    try:
        runpy.run_module(name, init_globals=main_module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            if isinstance(ended.code, int) and (said := last_line_since(before)):
                ended.add_note(said)
            raise


def module_of(spec: JobSpec) -> str:
    return spec.training_function.partition(":")[0]
