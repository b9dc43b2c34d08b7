"""The rows of divided tensors that this process holds. Tensors of jobs without gangs are as they are.

Here nothing imports DTensor, which takes half a second: only jobs with gangs have some (gang.py).
"""

from collections.abc import Sequence
from typing import Any, cast

import torch

Tensors = list[torch.Tensor | None]
_UNDIVIDED = (torch.Tensor, torch.nn.Parameter)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of a tensor that are here: all of them, unless a gang has divided it. The same object each time."""
    if type(tensor) in _UNDIVIDED or not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        return cast(Any, tensor).to_local()


def may_have_changed(tensor: torch.Tensor, version: int) -> bool:
    """Since torch's count of its changes in place was this one. Operations on lists do not count those of divided
    tensors."""
    return tensor._version != version or local_of(tensor) is not tensor


def all_local(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [local_of(tensor) for tensor in tensors]


def locals_there(tensors: Sequence[torch.Tensor | None]) -> Tensors:
    """None stays None, such as the gradient of an unused parameter."""
    return [None if tensor is None else local_of(tensor) for tensor in tensors]


def gradients_of(parameters: Sequence[torch.Tensor], rows: Sequence[torch.Tensor | None]) -> Tensors:
    """The gradients of parameters, from their rows here."""
    return [
        None if here is None else _gradient_of(parameter, here)
        for parameter, here in zip(parameters, rows, strict=True)
    ]


def _gradient_of(parameter: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    if type(parameter) in _UNDIVIDED or not hasattr(parameter, "to_local"):
        return rows
    divided = cast(Any, parameter)
    return type(divided).from_local(
        rows,
        divided.device_mesh,
        divided.placements,
        run_check=False,
        shape=divided.shape,
        stride=divided.stride(),
    )
