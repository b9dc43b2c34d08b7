"""Detects workers whose states have diverged: they compare a fingerprint at each step boundary.

Each worker runs the optimizer's step by itself. A schedule in an attribute, which a joining worker does not have, or a
flipped bit would otherwise make one of them diverge unnoticed.
"""

import zlib
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elasticflow.services.executor.worker.steps.step_boundary import optimizer_settings
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed

PARAMETERS_EVERY = 100  # steps; the optimizer's settings in each


def fingerprint(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], iteration: int) -> int:
    """32 bits of the optimizer's settings and, every PARAMETERS_EVERY steps, of all parameters."""
    number = zlib.crc32(repr(optimizer_settings(optimizer)).encode())
    if iteration % PARAMETERS_EVERY == 0:
        for parameter in parameters:
            number = zlib.crc32(_checksum(parameter.detach()), number)
    return number


def _checksum(tensor: torch.Tensor) -> bytes:
    """Of the tensor's bits, on its device: one flipped bit always changes it."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    words = data.view(torch.int32) if data.numel() % 4 == 0 else data
    return int(words.sum(dtype=torch.int64)).to_bytes(8, "little", signed=True)


def require_same_state(same: bool, iteration: int, model: nn.Module) -> None:
    """model: as train() receives it. Raises TrainingFailed with the likely cause if the fingerprints differ."""
    if same:
        return
    if isinstance(model, DistributedDataParallel) and not model.find_unused_parameters:
        without = [name for name, p in model.module.named_parameters() if p.requires_grad and p.grad is None]
        if (
            without
        ):  # torch has not summed the parameters that share its bucket, and reports it in the next step
            raise TrainingFailed(
                f"the parameter {without[0]} has no gradient in iteration {iteration}, which the fast mode waits for: "
                'set find_unused_parameters = True, or reproducible = "bitwise"'
            )
    raise TrainingFailed(
        f"the workers' states differ after iteration {iteration}: the optimizer settings or the parameters of one "
        "worker diverged. Let init_model() draw random numbers only from torch, numpy or Python without seeding them, "
        "since all workers seed these alike; and derive what train() changes, such as a learning rate, from "
        "self.iteration, not from attributes, which a worker that joins later does not have"
    )
