"""A state is nested dicts, lists and tuples with tensors in them: its outline, and its tensors in one line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Outline:
    """Stands where a tensor is."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether it may lie in this memory, on the CPU."""
        same = tuple(tensor.shape) == self.shape and tensor.dtype == self.dtype
        return same and tensor.device.type == "cpu" and tensor.is_contiguous()


def take_apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The same with an outline for each tensor; the tensors are added to the list."""
    match value:
        case torch.Tensor():
            tensors.append(value.detach())
            return Outline(len(tensors) - 1, tuple(value.shape), value.dtype)
        case dict():
            return type(value)({key: take_apart(item, tensors) for key, item in value.items()})
        case list() | tuple():
            return type(value)(take_apart(item, tensors) for item in value)
        case _:
            return value


def outlines_in(outline: Any) -> list[Outline]:
    """In the order of their tensors."""
    match outline:
        case Outline():
            return [outline]
        case dict():
            return [found for item in outline.values() for found in outlines_in(item)]
        case list() | tuple():
            return [found for item in outline for found in outlines_in(item)]
        case _:
            return []


def put_together(outline: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """With these tensors where the outlines stand."""
    match outline:
        case Outline():
            return tensors[outline.index]
        case dict():
            return type(outline)({key: put_together(item, tensors) for key, item in outline.items()})
        case list() | tuple():
            return type(outline)(put_together(item, tensors) for item in outline)
        case _:
            return outline
