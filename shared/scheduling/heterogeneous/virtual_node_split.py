"""How many virtual nodes each GPU carries, so that a step on GPUs of several types is as short as possible. Exact.

A GPU of type i that carries v virtual nodes computes for t_i(v) seconds, and among n workers communicates for c_i(n).
The slowest GPU makes the step: max t_i(v) + c_i(n). GPUs of one type need not carry the same number, and some may carry
none.

Axis: V = virtual nodes on one GPU, from 1. Source: VirtualFlow, section 5.1.2, where the objective is printed with a
factor too many, and all types communicate for the same time (docs/explanation/gpu-types.md).
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes

DEFAULT_LEAST_GAIN = 0.05
_FREE = CommunicationTimes()
_CLOSE = 1e-3  # relative: between a step that is possible and one that is not, few steps are left


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusOfType:
    """GPUs of one type that a job may use.

    step_s_V: step time of one of them with 1, 2, ... virtual nodes, as many as fit its memory (`of_virtual_nodes`).
    communication: what a step with several workers takes longer on one of them.
    Raises ValueError if there is no GPU, or if a time is not positive or decreases.
    """

    name: str
    num_gpus: int
    step_s_V: tuple[float, ...]
    communication: CommunicationTimes = _FREE

    def __post_init__(self) -> None:
        if self.num_gpus < 1:
            raise ValueError(f"the number of GPUs of type {self.name} must be positive: {self.num_gpus}")
        if self.step_s_V and not 0 < self.step_s_V[0] <= self.step_s_V[-1] < math.inf:
            raise ValueError(f"step times on {self.name} must be positive and finite: {self.step_s_V}")
        if not all(low <= high for low, high in pairwise(self.step_s_V)):
            raise ValueError(f"more virtual nodes on {self.name} must not take less time: {self.step_s_V}")

    def step_s(self, count: int, num_workers: int) -> float:
        """The step time of one GPU with so many virtual nodes among so many workers."""
        return self.step_s_V[count - 1] + self.communication.at(num_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNodeSplit:
    """The virtual nodes of each GPU that has some, by type, and why.

    step_s: predicted, communication included; mixed_s: of the best split over all types.
    alone_s: of each type alone; None if its memory is too small for that.
    """

    counts: Mapping[str, tuple[int, ...]]
    step_s: float
    mixed_s: float
    alone_s: Mapping[str, float | None]

    @property
    def gain(self) -> float | None:
        """Steps per second of the best mix over those of the best type alone, less 1; None if no type suffices."""
        possible_s = [alone_s for alone_s in self.alone_s.values() if alone_s is not None]
        return min(possible_s) / self.mixed_s - 1.0 if possible_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLittleMemory:
    """The GPUs together cannot hold a job. most_per_gpu: virtual nodes, with the number of GPUs, by type."""

    num_virtual_nodes: int
    most_per_gpu: Mapping[str, tuple[int, int]]

    def __str__(self) -> str:
        by_type = self.most_per_gpu.items()
        held = ", ".join(f"{most or 'none'} on each of {number} {name}" for name, (most, number) in by_type)
        return (
            f"{self.num_virtual_nodes} virtual nodes do not fit the memory of the GPUs ({held}); "
            "take more GPUs, or a smaller global batch"
        )


def split_virtual_nodes(
    types: Iterable[GpusOfType], num_virtual_nodes: int, least_gain: float = DEFAULT_LEAST_GAIN
) -> VirtualNodeSplit | TooLittleMemory:
    """The shortest step; on one type, if all types together are not faster than that by more than `least_gain`.

    Of equally short steps it is one with the fewest GPUs; then faster types are filled first, by name where equal.
    Raises ValueError without types or virtual nodes, if a name occurs twice, or if least_gain is negative.
    """
    ranked = sorted(types, key=lambda gpus: (gpus.step_s_V[:1], gpus.name))
    names = [gpus.name for gpus in ranked]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a split needs GPUs of one type or more, each named once: {names}")
    if num_virtual_nodes < 1 or not least_gain >= 0:
        raise ValueError(f"no split of {num_virtual_nodes} virtual nodes for a gain of {least_gain} or more")
    mixed = _Search(ranked, num_virtual_nodes).shortest()
    if mixed is None:
        most_per_gpu = {gpus.name: (len(gpus.step_s_V), gpus.num_gpus) for gpus in ranked}
        return TooLittleMemory(num_virtual_nodes=num_virtual_nodes, most_per_gpu=most_per_gpu)
    alone = {gpus.name: _Search([gpus], num_virtual_nodes).shortest() for gpus in ranked}
    best_alone = min(filter(None, alone.values()), key=lambda fastest: fastest.step_s, default=mixed)
    chosen = best_alone if best_alone.step_s <= mixed.step_s * (1.0 + least_gain) else mixed
    return VirtualNodeSplit(
        counts={part.gpus.name: part.counts for part in chosen.parts},
        step_s=chosen.step_s,
        mixed_s=mixed.step_s,
        alone_s={name: fastest.step_s if fastest else None for name, fastest in alone.items()},
    )


class _Part(NamedTuple):
    """So many virtual nodes on so many GPUs of one type."""

    gpus: GpusOfType
    num_used: int
    num_virtual_nodes: int

    @property
    def most(self) -> int:
        """The most virtual nodes on one of them."""
        return -(-self.num_virtual_nodes // self.num_used)

    @property
    def counts(self) -> tuple[int, ...]:
        """The virtual nodes of each GPU, as equal as possible, descending."""
        each, rest = divmod(self.num_virtual_nodes, self.num_used)
        return (each + 1,) * rest + (each,) * (self.num_used - rest)


class _Found(NamedTuple):
    step_s: float
    num_workers: int
    parts: list[_Part]


class _Search:
    """Searches for the shortest step of all virtual nodes on these GPUs.

    types: of several whose GPUs carry as many, the first is filled first.
    """

    def __init__(self, types: Sequence[GpusOfType], num_virtual_nodes: int) -> None:
        self._types, self._num_virtual_nodes = types, num_virtual_nodes
        self._communication_s = dict[int, list[float]]()  # of each type, by number of workers

    def shortest(self) -> _Found | None:
        """The split with the shortest step; None if the memory of all GPUs together is too small.

        A bound of the step is halved between what is possible and what is not. Once these are close, each possible step
        is followed by the next shorter one, until none is possible. So the result does not depend on a precision.
        """
        best = self._within(math.inf)
        impossible_s = min((gpus.step_s_V[0] for gpus in self._types if gpus.step_s_V), default=0.0)
        while best is not None:
            is_close = best.step_s - impossible_s <= _CLOSE * best.step_s
            bound_s = math.nextafter(best.step_s, 0.0) if is_close else math.sqrt(impossible_s * best.step_s)
            found = self._within(bound_s, best.num_workers)
            if found is not None:
                best = found
            elif is_close:
                return self._within(best.step_s, best.num_workers)
            else:
                impossible_s = bound_s
        return None

    def _within(self, bound_s: float, num_workers: int = 1) -> _Found | None:
        """The split over the fewest GPUs whose steps take at most `bound_s`; None if there are too few.

        More workers communicate for longer, so each carries less, and more of them may be needed: their number grows
        until it suffices. num_workers: fewer do not suffice.
        """
        while (parts := self._fill(bound_s, num_workers)) is not None:
            num_used = sum(part.num_used for part in parts)
            if num_used <= num_workers:
                return _Found(max(part.gpus.step_s(part.most, num_used) for part in parts), num_used, parts)
            num_workers = num_used
        return None

    def _fill(self, bound_s: float, num_workers: int) -> list[_Part] | None:
        """The fewest GPUs, if so many workers communicate: those that carry the most are filled first."""
        if num_workers not in self._communication_s:
            self._communication_s[num_workers] = [gpus.communication.at(num_workers) for gpus in self._types]
        carried = [
            (bisect_right(gpus.step_s_V, bound_s, key=communication_s.__add__), gpus)
            for gpus, communication_s in zip(self._types, self._communication_s[num_workers], strict=True)
        ]
        parts, left = list[_Part](), self._num_virtual_nodes
        for most, gpus in sorted(carried, key=lambda each: -each[0]):
            if most == 0:
                break
            num_used = min(gpus.num_gpus, -(-left // most))
            parts.append(_Part(gpus, num_used, min(left, num_used * most)))
            left -= parts[-1].num_virtual_nodes
            if left == 0:
                return parts
        return None
