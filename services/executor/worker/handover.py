"""The state of a job, handed over by those who have it to those who come: from memory to memory, in parallel.

Whoever has done the most steps is a source. The first of them tells how the state is built; then each tensor goes
straight into the newcomer's own, from the sources in turn. Small ones travel together.
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
    tensors: list[torch.Tensor] = []
    is_source = everyone.rank in sources
    outline = take_apart(state, tensors) if is_source else None
    outline = everyone.broadcast_object(outline, source=sources[0])
    outlines = outlines_in(outline)
    tensors = [tensor.cpu().contiguous() for tensor in tensors] or _places_for(outlines, own)
    small = [each.index for each in outlines if each.num_bytes <= _SMALL_BYTES]
    parcel = _parcel(tensors, small)
    loose = [tensors[each.index] for each in outlines if each.num_bytes > _SMALL_BYTES]
    sends: list[Transfer] = []
    receives: list[Transfer] = []
    for receiver in receivers:
        for tag, tensor in enumerate([parcel, *loose]):
            source = sources[(tag + receiver) % len(sources)]
            if everyone.rank == source:
                sends.append(Transfer(_bytes_of(tensor), receiver, tag))
            elif everyone.rank == receiver:
                receives.append(Transfer(_bytes_of(tensor), source, tag))
    everyone.exchange(sends, receives)
    everyone.part()
    num_bytes = sum(each.num_bytes for each in outlines)
    if not receives:
        return HandOver(began_s=began_s, num_bytes=num_bytes)
    _unpack(parcel, tensors, small)
    return HandOver(began_s=began_s, state=put_together(outline, tensors), num_bytes=num_bytes)


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


def _unpack(parcel: torch.Tensor, tensors: Sequence[torch.Tensor], small: Sequence[int]) -> None:
    position = 0
    for i in small:
        into = _bytes_of(tensors[i])
        into.copy_(parcel[position : position + into.numel()])
        position += into.numel()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)
