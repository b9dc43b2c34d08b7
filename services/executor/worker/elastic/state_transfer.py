"""Transfers the state of a job between workers, from memory to memory, in parallel.

Every worker with the most completed steps is a source. The first source broadcasts the structure of the state. Then
each tensor goes straight into a receiver's memory, and the sources share the sending. Small tensors travel together.
The state that rank 0 reads from a checkpoint is broadcast in the same pieces.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from elasticflow.services.executor.worker.elastic.groups import Group
from elasticflow.services.executor.worker.elastic.nested_tensors import (
    TensorPlaceholder,
    flatten,
    placeholders_in,
    unflatten,
)
from elasticflow.services.executor.worker.elastic.transport import Transfer

NO_STATE = -1  # completed steps of a joining worker
_SMALL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTransfer:
    """began_s: monotonic time at which all workers had arrived. state: None for a worker that had it already.
    num_bytes: of the state's tensors; 0 if no worker needed them."""

    began_s: float
    state: Any = None
    num_bytes: int = 0


def transfer_state(
    group: Group | None,
    *,
    iteration: int,
    num_staying: int,
    state: Any = None,
    destinations: Sequence[torch.Tensor] = (),
) -> StateTransfer:
    """A collective of all workers of a rendezvous; its first num_staying ranks need the state.

    group: None for a worker that is alone and has the state. iteration: completed steps, NO_STATE for a joining worker.
    state: of a source, as nested dicts, lists and tuples. destinations: `model_tensors` of a joining worker, which
    receive values at once where they fit. A worker that is one step behind gives none, so that it keeps its own state
    if a peer is lost meanwhile.
    """
    if group is None:
        return StateTransfer(began_s=time.monotonic())
    steps_done = [int(theirs) for theirs in group.all_gather(torch.tensor([iteration]))]
    began_s = time.monotonic()
    sources = [rank for rank, steps in enumerate(steps_done) if steps == max(steps_done)]
    receivers = [rank for rank in range(num_staying) if rank not in sources]
    if not receivers:
        group.barrier()
        return StateTransfer(began_s=began_s)
    is_source = group.rank in sources
    payload = _StatePayload(group, sources[0], state if is_source else None, destinations)
    sends: list[Transfer] = []
    receives: list[Transfer] = []
    for receiver in receivers:
        for tag, piece in enumerate(payload.pieces):
            source = sources[(tag + receiver) % len(sources)]
            if group.rank == source:
                sends.append(Transfer(piece, receiver, tag))
            elif group.rank == receiver:
                receives.append(Transfer(piece, source, tag))
    group.exchange(sends, receives)
    group.barrier()
    return StateTransfer(began_s=began_s, state=payload.unpack() if receives else None, num_bytes=payload.num_bytes)


def broadcast_state(group: Group, state: Any = None, destinations: Sequence[torch.Tensor] = ()) -> Any:
    """A collective: the state of rank 0, on all ranks. destinations: as in `transfer_state`."""
    payload = _StatePayload(group, 0, state, destinations)
    for piece in payload.pieces:
        group.broadcast(piece, source=0)
    return state if group.rank == 0 else payload.unpack()


class _StatePayload:
    """A state in transit. The constructor is a collective: it broadcasts the structure, and receivers allocate memory.

    pieces: bytes, in sending order, with the small tensors in one piece. state: None for a receiver.
    """

    def __init__(self, group: Group, source: int, state: Any, destinations: Sequence[torch.Tensor]) -> None:
        tensors: list[torch.Tensor] = []
        structure = None if state is None else flatten(state, tensors)
        self._structure = group.broadcast_object(structure, source=source)
        placeholders = placeholders_in(self._structure)
        self.num_bytes = sum(each.num_bytes for each in placeholders)
        if state is None:
            self._tensors = _allocate(placeholders, destinations)
        else:
            self._tensors = [tensor.cpu().contiguous() for tensor in tensors]
        self._small = [each.index for each in placeholders if each.num_bytes <= _SMALL_BYTES]
        self._small_bytes = _concatenated(self._tensors, self._small)
        large = [self._tensors[each.index] for each in placeholders if each.num_bytes > _SMALL_BYTES]
        self.pieces = [self._small_bytes, *map(bytes_of, large)]

    def unpack(self) -> Any:
        """The state, once all pieces have arrived."""
        position = 0
        for i in self._small:
            into = bytes_of(self._tensors[i])
            into.copy_(self._small_bytes[position : position + into.numel()])
            position += into.numel()
        return unflatten(self._structure, self._tensors)


def model_tensors(model: nn.Module) -> list[torch.Tensor]:
    """The tensors of a model, which come first in the state of its job."""
    return [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]


def _allocate(placeholders: Sequence[TensorPlaceholder], destinations: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Memory for each tensor: a destination if it fits. The destinations are the first tensors of the state."""
    return [
        destinations[each.index]
        if each.index < len(destinations) and each.fits(destinations[each.index])
        else torch.empty(each.shape, dtype=each.dtype)
        for each in placeholders
    ]


def _concatenated(tensors: Sequence[torch.Tensor], small: Sequence[int]) -> torch.Tensor:
    return torch.cat([bytes_of(tensors[i]) for i in small]) if small else torch.empty(0, dtype=torch.uint8)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the same memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)
