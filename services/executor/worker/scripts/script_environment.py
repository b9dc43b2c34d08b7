"""The environment of a script: its folder, its arguments, and the variables that torchrun would set."""

import os
import runpy
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from elasticflow.services.executor.worker.process.device import visible_devices
from elasticflow.services.executor.worker.process.log_file import last_line_since, size_of_output
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed
from elasticflow.shared.messages.job_spec import SCRIPT, TORCHRUN, JobSpec
from elasticflow.shared.messages.worker_protocol.job_files import ARTIFACT_FOLDER, ARTIFACT_VARIABLE
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment


@contextmanager
def in_job_folder(assignment: Assignment) -> Iterator[None]:
    """A script works in the folder of its job. All jobs find their artifact folder in a variable. The files of a
    profiling run are deleted."""
    is_script = assignment.spec.entry in (SCRIPT, TORCHRUN)
    with _home_of(assignment) as home:
        artifacts = home / ARTIFACT_FOLDER
        with suppress(OSError):  # of a full disk; a job that writes no file does not need it
            artifacts.mkdir(parents=True, exist_ok=True)
        os.environ[ARTIFACT_VARIABLE] = str(artifacts)
        if is_script:
            folder = home / "files" if assignment.purpose == "train" else home
            folder.mkdir(parents=True, exist_ok=True)
            sys.path.insert(0, assignment.code_path or os.getcwd())
            os.chdir(folder)
        yield


@contextmanager
def _home_of(assignment: Assignment) -> Iterator[Path]:
    """The folder of the job, or one of this profiling run."""
    home = Path(assignment.checkpoint_dir)
    profiling_runs = home / "profiling-run"
    if assignment.purpose == "train":
        shutil.rmtree(profiling_runs, ignore_errors=True)  # of killed workers
        yield home
        return
    folder = profiling_runs / str(assignment.rank)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # other workers still use it
            profiling_runs.rmdir()
            home.rmdir()


SINGLE_PROCESS_ENVIRONMENT: Mapping[str, str] = {  # of a script that sees neither its peers nor their GPUs
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}


def run_script(spec: JobSpec, environment: Mapping[str, str], **main_module: Any) -> None:
    """As `python -m` does, with the job's arguments. main_module: names that the script finds in its main module.

    If the script exits with a bare number, its last line of output explains it, e.g. argparse's message.
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


_UNLIMITED = 2**31 - 1  # restarts; the script cannot decide whether to continue


class GpuSlot(NamedTuple):
    node_id: str
    gpu_index: int  # on its node


def torchrun_environment(
    assignment: Assignment,
    slots: Sequence[GpuSlot],
    address: str,
    inherited: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """slots: of all workers, by rank. address: host:port of rank 0's store, unused by a worker that is alone.

    The script sees only the GPUs of its node's workers, numbered from 0, so its process must not have used CUDA before.
    Raises TrainingFailed if two of them share a GPU.
    """
    host, _, port = address.rpartition(":")
    rank, world_size = assignment.rank, len(slots)
    nodes = list(dict.fromkeys(slot.node_id for slot in slots))
    local = [r for r, slot in enumerate(slots) if slot.node_id == slots[rank].node_id]
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local.index(rank),
        "LOCAL_WORLD_SIZE": len(local),
        "GROUP_RANK": nodes.index(slots[rank].node_id),
        "GROUP_WORLD_SIZE": len(nodes),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_PORT": int(port),
        "TORCHELASTIC_RESTART_COUNT": max(assignment.generation - 1, 0),
        "TORCHELASTIC_MAX_RESTARTS": _UNLIMITED,
    }
    words = {
        "MASTER_ADDR": host,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": assignment.job_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(world_size > 1),
    }
    gpu_names = visible_devices([slots[r].gpu_index for r in local], inherited).split(",")
    if assignment.device == "cuda" and len(set(gpu_names)) < len(gpu_names):
        raise TrainingFailed(
            "a torchrun script needs a GPU for each of its workers, and slots of this node share one: submit it to a "
            "pool whose executors run without EF_SLOTS, or with --gpus 1"
        )
    words["CUDA_VISIBLE_DEVICES"] = "" if assignment.device == "cpu" else ",".join(gpu_names)
    return {name: str(number) for name, number in numbers.items()} | words
