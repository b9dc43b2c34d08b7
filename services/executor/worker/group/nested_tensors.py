"""Flattens a job's state, nested dicts, lists and tuples with tensors, into its structure and its tensors, and back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TensorPlaceholder:
    """Stands for a tensor in the structure."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device_type: str = field(repr=False)  # workers of one job compare what they print, on any kind of device

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def fits(self, tensor: torch.Tensor, device: torch.device) -> bool:
        """Whether the tensor's own memory can receive the values on this device."""
        same = tuple(tensor.shape) == self.shape and tensor.dtype == self.dtype
        return same and tensor.device.type == device.type and tensor.is_contiguous()


def flatten(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure, with a placeholder for each tensor; appends the tensors to the list."""
    match value:
        case torch.Tensor():
            tensors.append(value.detach())
            return TensorPlaceholder(len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type)
        case dict():
            return type(value)({key: flatten(item, tensors) for key, item in value.items()})
        case list() | tuple():
            return type(value)(flatten(item, tensors) for item in value)
        case _:
            return value


def placeholders_in(structure: Any) -> list[TensorPlaceholder]:
    """The placeholders in a structure, in the order of their tensors."""
    match structure:
        case TensorPlaceholder():
            return [structure]
        case dict():
            return [found for item in structure.values() for found in placeholders_in(item)]
        case list() | tuple():
            return [found for item in structure for found in placeholders_in(item)]
        case _:
            return []


def unflatten(structure: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The nested value, with these tensors in place of the placeholders."""
    match structure:
        case TensorPlaceholder():
            return tensors[structure.index]
        case dict():
            return type(structure)({key: unflatten(item, tensors) for key, item in structure.items()})
        case list() | tuple():
            return type(structure)(unflatten(item, tensors) for item in structure)
        case _:
            return structure
