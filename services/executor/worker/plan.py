"""What all workers of a job must have in common, told in words where they meet, before any tensor travels.

Workers that sent each other tensors of different shapes would end without a word, or worse, go on: gloo ends the
process, NCCL waits. A node with another release of torch or another copy of the code is found here, and named.
"""

import hashlib
import inspect
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from services.executor.worker.training_function import TrainingFailed, TrainingFunction
from shared.messages.job import JobSpec

Plan = dict[str, str]  # by what it is called; digests for what is too long to be told


def plan_of(
    function: TrainingFunction,
    spec: JobSpec,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    samples: str,
) -> Plan:
    """Of one worker."""
    groups = [len(group["params"]) for group in optimizer.param_groups]
    return {
        "torch": torch.__version__,
        "training function": f"{spec.training_function} {_digest(spec.code_digest, _source_of(function))}",
        "hyperparameters": str(sorted(function.hyperparameters.items())),
        "seed": str(spec.seed),
        "mode": f"{function.reproducible}, {function.virtual_nodes} virtual nodes",
        "samples": samples,
        "parameters": _tensors(model.named_parameters()),
        "buffers": _tensors(model.named_buffers()),
        "optimizer": f"{type(optimizer).__qualname__} of {groups}",
    }


def compare(mine: Plan, first: Plan) -> None:
    """first: of the worker in place 0. Raises TrainingFailed, naming all that differs."""
    differences = [
        f"{name}: {mine.get(name)} here, {first.get(name)} there"
        for name in {**mine, **first}
        if mine.get(name) != first.get(name)
    ]
    if differences:
        raise TrainingFailed(
            f"this worker differs from the first of its generation: {'; '.join(differences)}; let all nodes have the "
            "same code, data and release of torch"
        )


def _tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """In their order, which is that in which they travel."""
    described = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]
    return f"{len(described)} {_digest(described)}"


def _source_of(function: TrainingFunction) -> str:
    """The module of the user's class; "" where there is no source to be read."""
    try:
        return inspect.getsource(sys.modules[type(function).__module__])
    except (OSError, TypeError, KeyError):
        return ""


def _digest(*values: Any) -> str:
    return "#" + hashlib.sha256(repr(values).encode()).hexdigest()[:12]
