"""What all workers of a job must have in common; workers compare it in their rendezvous, before any tensor travels.

Workers that sent tensors of different shapes would fail without an explanation (gloo ends the process, NCCL waits) or,
worse, continue. The comparison finds a node with another release of torch or another copy of the code, and names it.
"""

import hashlib
import inspect
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from elasticflow.services.executor.worker.steps.training_function import TrainingFailed, TrainingFunction
from elasticflow.shared.messages.job_spec import JobSpec

CompatibilityDigest = dict[str, str]  # value or hash, by property


def compatibility_digest(
    function: TrainingFunction,
    spec: JobSpec,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    samples: str,
) -> CompatibilityDigest:
    """Of this worker. samples: `DataSet.samples_digest`."""
    groups = [len(group["params"]) for group in optimizer.param_groups]
    return {
        "torch": torch.__version__,
        "training function": f"{spec.training_function} {_hash(spec.code_digest, _source_of(function))}",
        "hyperparameters": str(sorted(function.hyperparameters.items())),
        "seed": str(spec.seed),
        "mode": f"{function.reproducible}, {function.virtual_nodes} virtual nodes",
        "samples": samples,
        "parameters": _tensors(model.named_parameters()),
        "buffers": _tensors(model.named_buffers()),
        "optimizer": f"{type(optimizer).__qualname__} of {groups}",
    }


def require_compatible(mine: CompatibilityDigest, first: CompatibilityDigest) -> None:
    """first: that of rendezvous rank 0. Raises TrainingFailed, naming all differences."""
    differences = [
        f"{name}: {mine.get(name)} here, {first.get(name)} there"
        for name in {**mine, **first}
        if mine.get(name) != first.get(name)
    ]
    if differences:
        raise TrainingFailed(
            f"this worker differs from rank 0 of its rendezvous: {'; '.join(differences)}; install the same code, "
            "data and release of torch on all nodes"
        )


def _tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """In the order in which they travel."""
    described = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]
    return f"{len(described)} {_hash(described)}"


def _source_of(function: TrainingFunction) -> str:
    """The module of the user's class; "" if its source is unavailable."""
    try:
        return inspect.getsource(sys.modules[type(function).__module__])
    except (OSError, TypeError, KeyError):
        return ""


def _hash(*values: Any) -> str:
    return "#" + hashlib.sha256(repr(values).encode()).hexdigest()[:12]
