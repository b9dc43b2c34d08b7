"""Transfers the state of a job between workers, from memory to memory, in parallel.

Every worker with the most completed steps is a source. The first source broadcasts the structure of the state. Then
each tensor goes straight into a receiver's memory, and the sources share the sending. Small tensors travel together.
Tensors on the device stay there: the group of the new generation moves them, if one of its workers is a source and all
workers have one kind of device. The state that rank 0 reads from a checkpoint is broadcast in the same pieces, by way
of the host.

Workers whose devices compute other bits hold states that are equal up to rounding. If one of them joins or catches up,
all take the state of the first source, so that workers that compute the same bits continue with the same.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.nested_tensors import (
    TensorPlaceholder,
    flatten,
    placeholders_in,
    unflatten,
)
from elasticflow.services.executor.worker.group.transport import Transfer
from elasticflow.services.executor.worker.interface import TrainingFailed

NO_STATE = -1  # completed steps of a joining worker
_SMALL_BYTES = 1 << 16
_HOST = torch.device("cpu")
_DIFFERENT_STRUCTURES = (
    "two workers at the same iteration have states with different tensors, so neither can be sent to another one: let "
    "state_dict() of the model, the optimizer and each object of stateful() have the same tensors in all workers"
)


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
    device: torch.device = _HOST,
    training_group: Group | None = None,
    may_differ: bool = False,
) -> StateTransfer:
    """A collective of all workers of a rendezvous; its first num_staying ranks need the state.

    group: None for a worker that is alone and has the state. iteration: completed steps, NO_STATE for a joining worker.
    state: of a source, as nested dicts, lists and tuples. destinations: `model_tensors` of a joining worker, which
    receive values at once where they fit. A worker that is one step behind gives none, so that it keeps its own state
    if a peer is lost meanwhile. device: of this worker, and training_group: of the first num_staying ranks, which moves
    tensors on the device; without it all go by way of the host. may_differ: some peer of this worker computed other
    bits so far.
    """
    if group is None:
        return StateTransfer(began_s=time.monotonic())
    mine_and_theirs = group.all_gather(torch.tensor([iteration, may_differ, device != _HOST]))
    began_s = time.monotonic()
    steps_done, some_differ, on_device = zip(*(theirs.tolist() for theirs in mine_and_theirs), strict=True)
    sources = [rank for rank, steps in enumerate(steps_done) if steps == max(steps_done)]
    receivers = [rank for rank in range(num_staying) if rank not in sources]
    if not receivers:
        group.barrier()
        return StateTransfer(began_s=began_s)
    if any(some_differ):
        sources = sources[:1]
        receivers = [rank for rank in range(num_staying) if rank not in sources]
    staying_sources = [rank for rank in sources if rank < num_staying]
    # a worker that has a state already receives another one beside it, for which its device may be too small
    moves_on_device = bool(staying_sources) and len(set(on_device)) == 1 and not any(some_differ)
    mine = state if group.rank in sources else None
    payload = _StatePayload(group, sources[0], mine, destinations, device if moves_on_device else _HOST)
    _exchange(group, payload.on_host, sources, receivers)
    if training_group is not None and payload.on_device:
        _exchange(training_group, payload.on_device, staying_sources, receivers)
        training_group.check_received()
    group.barrier()
    received = payload.unpack() if group.rank in receivers else None
    return StateTransfer(began_s=began_s, state=received, num_bytes=payload.num_bytes)


def broadcast_state(group: Group, state: Any = None, destinations: Sequence[torch.Tensor] = ()) -> Any:
    """A collective: the state of rank 0, on all ranks. destinations: as in `transfer_state`."""
    payload = _StatePayload(group, 0, state, destinations, _HOST)
    for piece in payload.on_host:
        group.broadcast(piece, source=0)
    return state if group.rank == 0 else payload.unpack()


class _StatePayload:
    """A state in transit. The constructor is a collective: it broadcasts the structure, and receivers allocate memory.

    on_host, on_device: bytes, in sending order, with the small tensors in one piece each. state: None for a receiver.
    device: where tensors stay that lie on a device of its type.
    """

    def __init__(
        self, group: Group, source: int, state: Any, destinations: Sequence[torch.Tensor], device: torch.device
    ) -> None:
        tensors: list[torch.Tensor] = []
        structure = None if state is None else flatten(state, tensors)
        self._structure = group.broadcast_object(structure, source=source)
        placeholders = placeholders_in(self._structure)
        self.num_bytes = sum(each.num_bytes for each in placeholders)
        devices = [device if each.device_type == device.type else _HOST for each in placeholders]
        if state is None:
            self._tensors = _allocate(placeholders, destinations, devices)
        else:
            if [(each.shape, each.dtype) for each in placeholders] != [(each.shape, each.dtype) for each in tensors]:
                raise TrainingFailed(_DIFFERENT_STRUCTURES)
            self._tensors = [tensor.to(where).contiguous() for tensor, where in zip(tensors, devices, strict=True)]
        self._bundles = {
            here: _Bundle(
                self._tensors, [each for each, where in zip(placeholders, devices, strict=True) if where == here]
            )
            for here in dict.fromkeys(devices)
        }
        self.on_host = [piece for here, each in self._bundles.items() if here == _HOST for piece in each.pieces]
        self.on_device = [piece for here, each in self._bundles.items() if here != _HOST for piece in each.pieces]

    def unpack(self) -> Any:
        """The state, once all pieces have arrived."""
        for bundle in self._bundles.values():
            bundle.unpack()
        return unflatten(self._structure, self._tensors)


class _Bundle:
    """The tensors of a state on one device. pieces: their bytes, the small ones in one piece."""

    def __init__(self, tensors: Sequence[torch.Tensor], placeholders: Sequence[TensorPlaceholder]) -> None:
        self._small = [bytes_of(tensors[each.index]) for each in placeholders if each.num_bytes <= _SMALL_BYTES]
        large = [bytes_of(tensors[each.index]) for each in placeholders if each.num_bytes > _SMALL_BYTES]
        self._together = torch.cat(self._small) if self._small else None
        self.pieces = large if self._together is None else [self._together, *large]

    def unpack(self) -> None:
        """The small tensors."""
        if self._together is not None:
            for into, arrived in zip(
                self._small, self._together.split([each.numel() for each in self._small]), strict=True
            ):
                into.copy_(arrived)


def _exchange(group: Group, pieces: Sequence[torch.Tensor], sources: Sequence[int], receivers: Sequence[int]) -> None:
    sends: list[Transfer] = []
    receives: list[Transfer] = []
    for receiver in receivers:
        for tag, piece in enumerate(pieces):
            source = sources[(tag + receiver) % len(sources)]
            if group.rank == source:
                sends.append(Transfer(piece, receiver, tag))
            elif group.rank == receiver:
                receives.append(Transfer(piece, source, tag))
    group.exchange(sends, receives)


def model_tensors(model: nn.Module) -> list[torch.Tensor]:
    """The tensors of a model, which come first in the state of its job."""
    return [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]


def _allocate(
    placeholders: Sequence[TensorPlaceholder], destinations: Sequence[torch.Tensor], devices: Sequence[torch.device]
) -> list[torch.Tensor]:
    """Memory for each tensor: a destination if it fits. The destinations are the first tensors of the state."""
    return [
        destinations[each.index]
        if each.index < len(destinations) and each.fits(destinations[each.index], device)
        else torch.empty(each.shape, dtype=each.dtype, device=device)
        for each, device in zip(placeholders, devices, strict=True)
    ]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the same memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)
