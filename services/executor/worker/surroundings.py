"""Where a script runs: what it finds in its environment, its working directory and on its path."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from shared.messages.job import JobSpec
from shared.messages.worker_channel import Assignment

MAIN = ":__main__"  # a training function of this name is a script


def is_script(spec: JobSpec) -> bool:
    return spec.training_function.endswith(MAIN)


@contextmanager
def at_home(assignment: Assignment) -> Iterator[None]:
    """A script works in the folder of its job, in a world of one; what a pre-run writes is thrown away."""
    if not is_script(assignment.spec):
        yield
        return
    sys.path.insert(0, assignment.code_path or os.getcwd())
    world_of_one = {
        "RANK": 0,
        "WORLD_SIZE": 1,
        "LOCAL_RANK": assignment.gpu_index,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 0,
    }
    os.environ.update({name: str(value) for name, value in world_of_one.items()})
    with ExitStack() as stack:
        if assignment.purpose == "profile":
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="pre-run-")))
        else:
            folder = Path(assignment.checkpoint_dir) / "files"
            folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        yield
