"""How many virtual nodes each GPU carries, so that a step on GPUs of several types is as short as possible. Exact.

A GPU of type i that carries v virtual nodes computes for t_i(v) seconds. The slowest GPU and the communication make the
step: max t_i(v) + communication. So the bound of the computation is one of the values t_i(v). GPUs of one type need not
carry the same number, and some may carry none.

Axis: V = virtual nodes on one GPU, from 1. Source: VirtualFlow, section 5.1.2, where the objective is printed with a
factor too many (docs/explanation/gpu-types.md).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

from elasticflow.shared.scheduling.heterogeneous.communication_times import CommunicationTimes

DEFAULT_LEAST_GAIN = 0.05
_FREE = CommunicationTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusOfType:
    """GPUs of one type that a job may use.

    step_s_V: step time of one of them with 1, 2, ... virtual nodes, as many as fit its memory (`of_virtual_nodes`).
    Raises ValueError if there is no GPU, or if a time is not positive or decreases.
    """

    name: str
    num_gpus: int
    step_s_V: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.num_gpus < 1:
            raise ValueError(f"the number of GPUs of type {self.name} must be positive: {self.num_gpus}")
        if self.step_s_V and not 0 < self.step_s_V[0] <= self.step_s_V[-1] < math.inf:
            raise ValueError(f"step times on {self.name} must be positive and finite: {self.step_s_V}")
        if not all(low <= high for low, high in pairwise(self.step_s_V)):
            raise ValueError(f"more virtual nodes on {self.name} must not take less time: {self.step_s_V}")

    def most_within(self, bound_s: float) -> int:
        """The most virtual nodes of one GPU whose step takes at most `bound_s`."""
        return bisect_right(self.step_s_V, bound_s)


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
    types: Iterable[GpusOfType],
    num_virtual_nodes: int,
    communication: CommunicationTimes = _FREE,
    least_gain: float = DEFAULT_LEAST_GAIN,
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
    mixed = _fastest(ranked, num_virtual_nodes, communication)
    if mixed is None:
        most_per_gpu = {gpus.name: (len(gpus.step_s_V), gpus.num_gpus) for gpus in ranked}
        return TooLittleMemory(num_virtual_nodes=num_virtual_nodes, most_per_gpu=most_per_gpu)
    alone = {gpus.name: _fastest([gpus], num_virtual_nodes, communication) for gpus in ranked}
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
    def counts(self) -> tuple[int, ...]:
        """As equal as possible, descending."""
        each, rest = divmod(self.num_virtual_nodes, self.num_used)
        return (each + 1,) * rest + (each,) * (self.num_used - rest)


class _Fastest(NamedTuple):
    step_s: float
    parts: list[_Part]


def _fastest(types: Sequence[GpusOfType], num_virtual_nodes: int, communication: CommunicationTimes) -> _Fastest | None:
    """The shortest step; None if the memory of all GPUs together is too small.

    A longer bound of the computation never needs more GPUs, so the communication is never longer. The shortest possible
    bound is tried first, then longer ones as long as they could be better with the fewest GPUs of all.
    """
    bounds_s = sorted(chain.from_iterable(gpus.step_s_V[:num_virtual_nodes] for gpus in types))
    shortest = bisect_left(
        bounds_s, num_virtual_nodes, key=lambda bound_s: sum(g.num_gpus * g.most_within(bound_s) for g in types)
    )
    if shortest == len(bounds_s):
        return None
    least_communication_s = communication.at(_num_used(_fill(types, num_virtual_nodes, bounds_s[-1])))
    best: _Fastest | None = None
    for bound_s in bounds_s[shortest:]:
        if best is not None and bound_s + least_communication_s > best.step_s:
            break
        parts = _fill(types, num_virtual_nodes, bound_s)
        step_s = bound_s + communication.at(_num_used(parts))
        if best is None or step_s <= best.step_s:
            best = _Fastest(step_s, parts)
    return best


def _fill(types: Sequence[GpusOfType], num_virtual_nodes: int, bound_s: float) -> list[_Part]:
    """The fewest GPUs whose steps take at most `bound_s`: those that carry the most are filled first.

    types: those to prefer of several that carry the same number are first.
    """
    parts = list[_Part]()
    for gpus in sorted(types, key=lambda gpus: -gpus.most_within(bound_s)):
        if num_virtual_nodes == 0:
            break
        most = gpus.most_within(bound_s)
        num_used = min(gpus.num_gpus, -(-num_virtual_nodes // most))
        parts.append(_Part(gpus, num_used, min(num_virtual_nodes, num_used * most)))
        num_virtual_nodes -= parts[-1].num_virtual_nodes
    return parts


def _num_used(parts: Iterable[_Part]) -> int:
    return sum(part.num_used for part in parts)
