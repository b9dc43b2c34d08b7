"""What tells workers that no longer hold the same from workers that do: a number, compared at each step boundary.

Each worker takes the optimizer's step by itself. Whatever makes one of them step otherwise, a schedule in an attribute
that a worker which came later does not have, or a bit that flipped, would go on unseen for ever.
"""

import zlib
from collections.abc import Iterable

import torch

from services.executor.worker.optimizer_settings import settings_of

PARAMETERS_EVERY = 100  # steps; the optimizer's settings at each


def fingerprint(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], iteration: int) -> int:
    """32 bits: of the optimizer's settings and, now and then, of all parameters."""
    number = zlib.crc32(repr(settings_of(optimizer)).encode())
    if iteration % PARAMETERS_EVERY == 0:
        for parameter in parameters:
            number = zlib.crc32(_digest(parameter.detach()), number)
    return number


def _digest(tensor: torch.Tensor) -> bytes:
    """Of its bits, on its device: a flipped one always shows."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    words = data.view(torch.int32) if data.numel() % 4 == 0 else data
    return int(words.sum(dtype=torch.int64)).to_bytes(8, "little", signed=True)
