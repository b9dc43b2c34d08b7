"""A training function: its import by name, its virtual nodes, and what its errors mean."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes, default_count
from elasticflow.services.executor.worker.group.peer_loss import PeerLost, is_communication_error
from elasticflow.services.executor.worker.interface import TrainingFailed, TrainingFunction
from elasticflow.services.executor.worker.process.compiled_models import (
    CUDA_GRAPHS_REFUSED,
    MOST_SHAPES,
    has_too_many_shapes,
    is_refused_cuda_graph,
)
from elasticflow.services.executor.worker.process.device import DeviceLost, has_no_repeatable_kernel, is_device_lost
from elasticflow.services.executor.worker.process.users_code import NotImportable, import_users_module, modules_in
from elasticflow.services.executor.worker.process.users_process import PROCESS, meaning_of
from elasticflow.shared.messages.job_spec import JobSpec

_METHODS = (
    "init_model",
    "init_dataset",
    "init_optimizer",
    "sharded_blocks",
    "train",
    "evaluate",
    "evaluate_part",
    "metrics_of_sums",
    "collate",
    "stateful",
)


def load_training_function(spec: JobSpec, code_path: str) -> TrainingFunction:
    """An instance of the job's class, with its hyperparameters. Raises TrainingFailed if it cannot be loaded."""
    module_name, _, class_name = spec.training_function.partition(":")
    PROCESS.phase = f"at the import of {module_name}"
    try:
        module = import_users_module(module_name, code_path)
    except NotImportable as error:
        cause = error.__cause__
        meaning = "" if cause is None else meaning_of(cause, f"while {module_name} is imported")
        raise TrainingFailed(meaning or str(error)) from cause
    job_class = getattr(module, class_name, None)
    if job_class is None:
        raise TrainingFailed(f"module {module_name} has no class {class_name}: correct the training function's name")
    return training_function_of(job_class, spec)


def training_function_of(job_class: Any, spec: JobSpec) -> TrainingFunction:
    """An instance of the class, with the job's hyperparameters. Raises TrainingFailed if it lacks methods."""
    missing = [name for name in _METHODS if not callable(getattr(job_class, name, None))]
    if missing:
        raise TrainingFailed(f"{spec.training_function} lacks {', '.join(missing)}: let it subclass ElasticJob")
    job = cast(TrainingFunction, job_class())
    job.hyperparameters = {
        **job.hyperparameters,
        **spec.hyperparameters,
        "global_batch_size": spec.global_batch_size,
    }
    return job


def virtual_nodes_of(
    function: TrainingFunction,
    spec: JobSpec,
    world_size: int,
    micro_batch_size: int,
    counts_by_rank: tuple[int, ...] = (),
) -> VirtualNodes:
    """How the job's batch is cut: fixed for life, except that the fast mode cuts it for each generation.

    counts_by_rank: as placed; empty: as even as possible. Raises TrainingFailed if they do not fit the job.
    """
    cut = partial(
        VirtualNodes,
        global_batch_size=spec.global_batch_size,
        micro_batch_size=micro_batch_size * spec.gang_size,
        counts_by_rank=counts_by_rank,
    )
    placed = sum(counts_by_rank)
    if spec.gang_size > 1 and function.reproducible == "fast":
        raise TrainingFailed(
            "gpus_per_replica: the fast mode does not divide a model over several GPUs: leave reproducible out, or "
            "submit a script that calls fully_shard() with --torchrun"
        )
    if function.reproducible == "fast":
        if placed > spec.global_batch_size:
            raise TrainingFailed(
                f"{placed} virtual nodes were placed, but the global batch has {spec.global_batch_size} samples: place "
                "at most as many virtual nodes as samples"
            )
        return cut(count=placed or world_size).merged_by_worker()
    if function.reproducible != "bitwise":
        raise TrainingFailed(f'reproducible: must be "bitwise" or "fast", not {function.reproducible!r:.80}')
    gang = spec.gang_size
    count = function.virtual_nodes or default_count(spec.global_batch_size, gang)
    if not 1 <= count <= spec.global_batch_size:
        raise TrainingFailed(
            f"virtual_nodes: must be from 1 to global_batch_size ({spec.global_batch_size}), not {count}"
        )
    if counts_by_rank and placed != count:
        raise TrainingFailed(f"{placed} virtual nodes were placed, but the job has {count}: place each of them once")
    nodes = cut(count=count)
    if min(nodes.part_sizes) < gang:
        raise TrainingFailed(
            f"gpus_per_replica: {gang} GPUs divide the samples of each of {count} virtual nodes, and the smallest has "
            f"{min(nodes.part_sizes)} of {spec.global_batch_size}: let the class say virtual_nodes = "
            f"{default_count(spec.global_batch_size, gang)}, or use a larger global batch"
        )
    return nodes


def fixed_virtual_nodes(function: TrainingFunction, virtual_nodes: VirtualNodes) -> int:
    """How many a job has for life; 0 in the fast mode, which cuts the batch anew in each generation."""
    return 0 if function.reproducible == "fast" else virtual_nodes.count


def require_same_virtual_nodes(
    function: TrainingFunction, virtual_nodes: VirtualNodes, state: Mapping[str, Any]
) -> None:
    """Raises TrainingFailed if the state is that of steps with another number: the job would go on with other bits.

    States of older releases name none.
    """
    mine, theirs = fixed_virtual_nodes(function, virtual_nodes), state.get("virtual_nodes", 0)
    if mine and theirs and mine != theirs:
        raise TrainingFailed(
            f"the job has {mine} virtual nodes here, but its state after {state['iteration']} iterations is that of "
            f"{theirs}: let its code say virtual_nodes = {theirs}, or submit it as a new job"
        )


_WITHOUT_PROCESS_GROUP = (  # as torch says it
    "Default process group has not been initialized",
    "Error initializing torch.distributed using env:// rendezvous",
)


_SECOND_PROCESS_GROUP = "trying to initialize the default process group twice"  # as torch says it
_PORT_IN_USE = "EADDRINUSE"
_NO_SIGNAL_HANDLER = "signal only works in main thread"  # as Python says it


def _raised_by_user(error: BaseException) -> bool:
    """Whether users' code called what failed in torch, not the engine below it."""
    callers = [module for module in modules_in(error) if module.partition(".")[0] != "torch"]
    return bool(callers) and callers[-1].partition(".")[0] != "elasticflow"


@contextmanager
def in_users_code(where: str, *, has_peers: bool = False) -> Iterator[None]:
    """Errors raised in here are the user's, and get a note with the location; except those of a peer or device loss.

    has_peers: the code's own process groups connect the workers; else each of them has one process.
    """
    PROCESS.where = where
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        PROCESS.end_if_forked(error)
        if (PROCESS.is_worker or isinstance(error, SystemExit)) and (meaning := meaning_of(error, where)):
            raise TrainingFailed(meaning) from error
        if _PORT_IN_USE in str(error):
            error.add_note(
                "another process of this machine uses the port, for example another worker: leave the port out, or let "
                "init_process_group() make the store, without an address"
            )
        elif is_communication_error(error) and (has_peers or not _raised_by_user(error)):
            raise PeerLost(f"a collective failed {where}: {error}") from error
        if is_device_lost(error):
            raise DeviceLost(str(error).partition("\n")[0]) from error
        if _SECOND_PROCESS_GROUP in str(error):
            raise TrainingFailed(
                f"torch.distributed has a process group already {where}: that of the GPUs of a replica, which the pool "
                "makes. Leave out init_process_group()"
            ) from error
        if any(text in str(error) for text in _WITHOUT_PROCESS_GROUP):
            raise TrainingFailed(
                f"torch.distributed has no process group {where}: the job sums gradients over its workers by itself, "
                "and their number changes. Leave out DistributedDataParallel, fully_shard() and calls such as "
                "all_gather(); elasticflow.gather() and elasticflow.mean() give values of the whole batch, and "
                "shard_optimizer = True divides the optimizer's state. A model that needs several GPUs trains with "
                "gpus_per_replica"
            ) from error
        if isinstance(error, AttributeError) and error.name == "no_sync":
            raise TrainingFailed(
                f"the model has no no_sync() {where}, since it is not in DistributedDataParallel: call backward() "
                "several times before optimizer.step(); their gradients add up"
            ) from error
        if has_too_many_shapes(error):
            raise TrainingFailed(
                f"a compiled function met more than {MOST_SHAPES} shapes {where}, and the bitwise mode compiles each "
                'alone: pad the batches to a few sizes, set reproducible = "fast", or do not compile'
            ) from error
        if _NO_SIGNAL_HANDLER in str(error):
            raise TrainingFailed(
                f"no signal handler can be set {where}: users' code runs in a thread of its worker. Leave it out: at "
                "the end of a job `finally` and atexit run. A script that needs a handler runs with --torchrun"
            ) from error
        if is_refused_cuda_graph(error):
            raise TrainingFailed(f"{CUDA_GRAPHS_REFUSED} ({where})") from error
        if has_no_repeatable_kernel(error):
            raise TrainingFailed(
                f"{str(error).partition(',')[0]}, which the bitwise mode needs {where}: use another operation, or let "
                "init_model() or the script call torch.use_deterministic_algorithms(True, warn_only=True) before the "
                "first batch; two runs may then end with other bits"
            ) from error
        error.add_note(where)
        raise
    PROCESS.end_if_forked()
    if report := PROCESS.child_report():
        raise TrainingFailed(report)
