"""The state of a job, handed over by those who have it to those who come: from memory to memory, in parallel.

Whoever has done the most steps is a source. The first of them tells how the state is built; then each tensor goes
straight into the newcomer's own, from the sources in turn. Small ones travel together. What rank 0 has read from a
checkpoint spreads in the same pieces.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from services.executor.worker.groups import Group, Transfer
from services.executor.worker.tensor_tree import Outline, outlines_in, put_together, take_apart

NOTHING_YET = -1  # steps of a newcomer
_SMALL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What a worker has after it. began_s: by the monotonic clock, when all had come to it.
    state: None for those who have it already. num_bytes: of its tensors, if it was handed to anybody."""

    began_s: float
    state: Any = None
    num_bytes: int = 0


def hand_over(
    everyone: Group | None,
    *,
    iteration: int,
    num_staying: int,
    state: Any = None,
    own: Sequence[torch.Tensor] = (),
) -> HandOver:
    """A collective of all who meet; the first num_staying places need the state. None: of one that is alone and has it.

    iteration: steps done, NOTHING_YET for a newcomer. state: of a source, as nested dicts, lists and tuples.
    own: `own_tensors` of a newcomer. They are written at once where they fit; whoever is a step behind gives none, and
    holds what it held if a peer is lost meanwhile.
    """
    if everyone is None:
        return HandOver(began_s=time.monotonic())
    steps_done = [int(theirs) for theirs in everyone.all_gather(torch.tensor([iteration]))]
    began_s = time.monotonic()
    sources = [place for place, steps in enumerate(steps_done) if steps == max(steps_done)]
    receivers = [place for place in range(num_staying) if place not in sources]
    if not receivers:
        everyone.part()
        return HandOver(began_s=began_s)
    is_source = everyone.rank in sources
    freight = _Freight(everyone, sources[0], state if is_source else None, own)
    sends: list[Transfer] = []
    receives: list[Transfer] = []
    for receiver in receivers:
        for tag, piece in enumerate(freight.pieces):
            source = sources[(tag + receiver) % len(sources)]
            if everyone.rank == source:
                sends.append(Transfer(piece, receiver, tag))
            elif everyone.rank == receiver:
                receives.append(Transfer(piece, source, tag))
    everyone.exchange(sends, receives)
    everyone.part()
    return HandOver(
        began_s=began_s, state=freight.unpacked() if receives else None, num_bytes=freight.num_bytes
    )


def spread(group: Group, state: Any = None, own: Sequence[torch.Tensor] = ()) -> Any:
    """A collective: the state that rank 0 has, everywhere. own: as of `hand_over`."""
    freight = _Freight(group, 0, state, own)
    for piece in freight.pieces:
        group.broadcast(piece, source=0)
    return state if group.rank == 0 else freight.unpacked()


class _Freight:
    """A state as it travels. A collective: its outline comes from a source, and each receiver has a place for each of
    its tensors then. pieces: bytes, in the order in which they travel, the small tensors together.

    state: None for a receiver.
    """

    def __init__(self, group: Group, source: int, state: Any, own: Sequence[torch.Tensor]) -> None:
        tensors: list[torch.Tensor] = []
        outline = None if state is None else take_apart(state, tensors)
        self._outline = group.broadcast_object(outline, source=source)
        outlines = outlines_in(self._outline)
        self.num_bytes = sum(each.num_bytes for each in outlines)
        if state is None:
            self._tensors = _places_for(outlines, own)
        else:
            self._tensors = [tensor.cpu().contiguous() for tensor in tensors]
        self._small = [each.index for each in outlines if each.num_bytes <= _SMALL_BYTES]
        self._parcel = _parcel(self._tensors, self._small)
        loose = [self._tensors[each.index] for each in outlines if each.num_bytes > _SMALL_BYTES]
        self.pieces = [self._parcel, *map(_bytes_of, loose)]

    def unpacked(self) -> Any:
        """The state, when all pieces have come."""
        position = 0
        for i in self._small:
            into = _bytes_of(self._tensors[i])
            into.copy_(self._parcel[position : position + into.numel()])
            position += into.numel()
        return put_together(self._outline, self._tensors)


def own_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Those of a model, with which the state of its job begins."""
    return [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]


def _places_for(outlines: Sequence[Outline], own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Where each tensor is to lie; the state begins with those that the newcomer has already."""
    return [
        own[each.index]
        if each.index < len(own) and each.fits(own[each.index])
        else torch.empty(each.shape, dtype=each.dtype)
        for each in outlines
    ]


def _parcel(tensors: Sequence[torch.Tensor], small: Sequence[int]) -> torch.Tensor:
    return torch.cat([_bytes_of(tensors[i]) for i in small]) if small else torch.empty(0, dtype=torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)
