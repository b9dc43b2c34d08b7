"""Where tensors of one type lie in a flat buffer, and its segments, which the workers exchange one after another.

A backward pass finishes the last parameters first, so these lie first. Each segment has one equal part for each worker,
on bounds that suit vector instructions and the network.
"""
# pyright: strict

from collections.abc import Sequence
from itertools import pairwise

import torch

_ALIGNMENT = 128  # elements; 512 bytes of float32, as in tensors of their own
_SEGMENT_BYTES = 8 << 20  # enough for full speed of the network, few enough to begin early


class FlatLayout:
    """like: the tensors. num_parts: of each segment."""

    def __init__(self, like: Sequence[torch.Tensor], num_parts: int) -> None:
        self._like = like
        self._offsets = [0] * len(like)
        end = 0
        for position in reversed(range(len(like))):
            self._offsets[position] = end
            end += _multiple(max(like[position].numel(), 1), _ALIGNMENT)
        unit = num_parts * _ALIGNMENT
        self.num_elements = _multiple(end, unit)
        self._segment_elements = _multiple(_SEGMENT_BYTES // like[0].element_size(), unit)
        bounds = [*range(0, self.num_elements, self._segment_elements), self.num_elements]
        self.segments = [slice(start, stop) for start, stop in pairwise(bounds)]

    def segments_of(self, position: int) -> range:
        """Those in which a part of this tensor lies."""
        first = self._offsets[position]
        last = first + max(self._like[position].numel(), 1) - 1
        return range(first // self._segment_elements, last // self._segment_elements + 1)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of the tensors, in the order of their elements in memory if they have no holes."""
        return [_view(flat, offset, like) for offset, like in zip(self._offsets, self._like, strict=True)]


def part(whole: slice, index: int, num_parts: int) -> slice:
    """One of equal parts."""
    size = (whole.stop - whole.start) // num_parts
    return slice(whole.start + index * size, whole.start + (index + 1) * size)


def _multiple(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _view(flat: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    own = flat[offset : offset + like.numel()]
    dense = like.numel() == 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
    return own.as_strided(like.shape, like.stride()) if dense and like.numel() else own.view(like.shape)
