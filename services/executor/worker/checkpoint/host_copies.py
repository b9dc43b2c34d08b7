"""Copies of a state in memory of the host, which is reused from checkpoint to checkpoint."""

import time
from typing import Any

import torch

from elasticflow.services.executor.worker.elastic.nested_tensors import flatten, unflatten


class HostCopies:
    """Of tensors on a GPU, the copies lie in pinned memory: the GPU makes them, and no thread of the host waits."""

    def __init__(self) -> None:
        self._copies: list[torch.Tensor] = []
        self._waited_s = 0.0
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def begin(self, state: Any) -> Any:
        """A copy of the state, valid after `finish`. Later work of the GPU waits for it, so training may go on."""
        tensors: list[torch.Tensor] = []
        structure = flatten(state, tensors)
        if [_kind(tensor) for tensor in tensors] != [_kind(copy) for copy in self._copies]:
            self._copies = [torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda) for tensor in tensors]
        began_s = time.monotonic()
        self._events = None
        if any(tensor.is_cuda for tensor in tensors):
            self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._events[0].record()
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=tensor.is_cuda)
        if self._events is not None:
            self._events[1].record()
        self._waited_s = time.monotonic() - began_s
        return unflatten(structure, self._copies)

    def finish(self) -> float:
        """Wait until the newest copy is complete; from any thread. Returns the seconds for which training waited."""
        if self._events is None:
            return self._waited_s
        began, ended = self._events
        ended.synchronize()
        return began.elapsed_time(ended) / 1000


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
