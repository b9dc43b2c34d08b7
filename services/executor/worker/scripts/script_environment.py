"""The environment of a script: its main module, its arguments, and the variables that torchrun would set."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export all of them)

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlparse

import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.device import visible_devices
from elasticflow.services.executor.worker.process.log_file import last_line_since, size_of_output
from elasticflow.services.executor.worker.process.users_process import PROCESS, exit_call
from elasticflow.shared.messages.gpus import are_whole_gangs
from elasticflow.shared.messages.job_environment import GPUS_PER_REPLICA_VARIABLE
from elasticflow.shared.messages.job_spec import SCRIPT_SUFFIX, JobSpec
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment

SINGLE_PROCESS_ENVIRONMENT: Mapping[str, str] = {  # of a script that sees neither its peers nor their GPUs
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}


def run_script(spec: JobSpec, code_path: str, environment: Mapping[str, str], **main_module: Any) -> str:
    """Run a script as `python train.py` does, or `python -m` for a module of a package, with the job's arguments.

    code_path: folder that the script is imported from. main_module: names that it finds in its main module, which stays
    for what runs at the end of the process. If the script exits with a bare number, its last line of output explains
    it, e.g. argparse's message. Returns ", by" and the call that ended it with status 0, and its line; "" after its
    last line.
    """
    before = size_of_output()
    os.environ.update(environment)
    try:
        module, code = _main_module(spec, code_path)
        vars(module).update(main_module)
        sys.modules["__main__"], sys.argv = module, [str(module.__file__), *spec.arguments]
        exec(code, vars(module))
    except BaseException as error:
        PROCESS.end_if_forked(error)
        if not isinstance(error, SystemExit) or error.code:
            if isinstance(error, SystemExit) and isinstance(error.code, int) and (said := last_line_since(before)):
                error.add_note(said)
            raise
        return f", by {exit_call(error)}"
    if PROCESS.is_forked:
        PROCESS.end_child(None)
    return ""


def _main_module(spec: JobSpec, code_path: str) -> tuple[ModuleType, CodeType]:
    """The script's module and its code. Python looks for modules in its folder."""
    name, module = module_of(spec), ModuleType("__main__")
    file = Path(code_path) / (name if name.endswith(SCRIPT_SUFFIX) else f"{name}{SCRIPT_SUFFIX}")
    if file.is_file():
        _keep_namesake(file.stem)
        sys.path.insert(0, str(file.parent))
    else:  # of a package, or known to the node
        sys.path.insert(0, code_path)
        module.__spec__ = found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise ModuleNotFoundError(f"there is no module {name}", name=name)
        file, module.__package__ = Path(found.origin), found.parent
        sys.path.append(str(file.parent))  # `python src/train.py` imports from src, even if that is a package
    module.__file__ = str(file)
    module.__loader__ = SourceFileLoader("__main__", str(file))
    return module, compile(file.read_bytes(), str(file), "exec", dont_inherit=True)


def _keep_namesake(name: str) -> None:
    """Let other code import the installed module that is named as the script, such as `profile`, and not the script."""
    if not name.isidentifier() or name == "__main__":
        return
    installed = importlib.util.find_spec(name)
    if installed is not None and not str(installed.origin).startswith(os.getcwd()):
        sys.meta_path.insert(0, _Namesake(name, installed))


class _Namesake(MetaPathFinder):
    """Finds this one module."""

    def __init__(self, name: str, installed: ModuleSpec) -> None:
        self._name, self._installed = name, installed

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        return self._installed if fullname == self._name else None


def module_of(spec: JobSpec) -> str:
    """A module, or the name of a script's file that is no name of a module."""
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
        "TORCHELASTIC_RESTART_COUNT": max(assignment.plan.generation - 1, 0),
        "TORCHELASTIC_MAX_RESTARTS": _UNLIMITED,
    }
    if (gang := assignment.spec.gpus_per_replica) > 1:
        assert are_whole_gangs([slot.node_id for slot in slots], gang), "a replica is on two nodes"
        numbers[GPUS_PER_REPLICA_VARIABLE] = gang
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


# --- own rendezvous ------------------------------------------------------------------------------------
# Where the process groups of users' code meet: at the job's own rendezvous, whatever address the code names.
#
# Scripts set MASTER_PORT or an address in `init_process_group` for one job on a machine. Here several workers share
# it, and its ports. A number of processes or a rank that is not the job's is refused.

_Met = Iterator[tuple[dist.Store, int, int]]
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


def use_own_rendezvous(environment: Mapping[str, str]) -> None:
    """Use the job's own rendezvous from now on, in this process. environment: what the worker sets for the code; RANK
    and WORLD_SIZE included."""
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    of_torch = _rendezvous_handlers["env"]

    def meet(url: str, **options: Any) -> _Met:
        asked = dict(parse_qsl(urlparse(url).query))
        asked_rank = asked.get("rank", os.environ.get("RANK"))
        asked_size = asked.get("world_size", os.environ.get("WORLD_SIZE"))
        if asked_rank is None or asked_size is None:
            yield from of_torch(url, **options)  # its error names what is missing
        elif int(asked_size) == 1:
            yield dist.HashStore(), 0, 1
        elif int(asked_size) != size:
            raise TrainingFailed(_other_size(int(asked_size), size))
        elif int(asked_rank) != rank:
            raise TrainingFailed(
                f"init_process_group(rank={asked_rank}) in the worker of rank {rank}: leave rank and world_size out, "
                'or pass int(os.environ["RANK"]) and int(os.environ["WORLD_SIZE"])'
            )
        else:
            os.environ.update({name: environment[name] for name in _ADDRESS})
            yield from of_torch(f"env://?rank={rank}&world_size={size}", **options)

    for scheme in ("env", "tcp", "file"):
        _rendezvous_handlers[scheme] = meet


def _other_size(asked: int, size: int) -> str:
    sees = "one process, because the job sums gradients by itself" if size == 1 else f"{size} processes now"
    return (
        f"init_process_group(world_size={asked}): the code sees {sees}, and the number of workers changes. Leave rank "
        'and world_size out, or pass int(os.environ["RANK"]) and int(os.environ["WORLD_SIZE"])'
    )
