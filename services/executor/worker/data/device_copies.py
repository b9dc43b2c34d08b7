"""Copies batches to a device beside its work, whatever types a batch is made of."""
# pyright: reportPrivateImportUsage=false
# (torch's pytree is public by its use in torch.export and torch.func, not by its name)

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


class DeviceCopies:
    """Any thread begins a copy, the user of the batch finishes it. CPU slots need none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self, batch: Any) -> Any:
        """The input of `finish`. Copies from pinned memory run in the background."""
        if self._stream is None:
            return batch
        with torch.cuda.stream(self._stream):
            return tensors_moved(batch, self._device), self._stream.record_event()

    def finish(self, begun: Any) -> Any:
        """The batch on the device; later device work waits for the copy."""
        if self._stream is None:
            return begun
        batch, copied = begun
        here = torch.cuda.current_stream(self._device)
        here.wait_event(copied)
        for tensor in tensors_in(batch):
            # otherwise the allocator could reuse its memory during this stream's work
            tensor.record_stream(here)
        return objects_moved(batch, self._device)


def tensors_moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device, in containers of the same types."""
    return _mapped(batch, lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf)


def objects_moved(batch: Any, device: torch.device) -> Any:
    """The batch with each object that has a method `to` on the device, such as a graph or a tokenizer's encoding.

    What such an object holds is its own affair, so it is moved in the stream that uses it.
    """

    def on_device(leaf: Any) -> Any:
        return leaf.to(device) if not isinstance(leaf, torch.Tensor) and callable(getattr(leaf, "to", None)) else leaf

    return _mapped(batch, on_device)


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Those that `tensors_moved` moves."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif _is_plain_dataclass(leaf):
            yield from tensors_in(_fields_of(leaf))


def _mapped(batch: Any, act: Callable[[Any], Any]) -> Any:
    """`act` of each leaf. Beside torch's containers, dataclasses are containers, unless they move themselves."""

    def of_leaf(leaf: Any) -> Any:
        if not _is_plain_dataclass(leaf):
            return act(leaf)
        made = copy.copy(leaf)
        for name, value in _fields_of(leaf).items():
            object.__setattr__(made, name, _mapped(value, act))  # a frozen one, too
        return made

    return tree_map(of_leaf, batch)


def _is_plain_dataclass(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and not callable(getattr(leaf, "to", None))


def _fields_of(leaf: Any) -> dict[str, Any]:
    return {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
