"""How the parameters of an optimizer are divided among workers, and a whole state is made of their parts again.

All parameters lie one after another, in their order in memory, in blocks of 128 elements. Each worker owns a contiguous
range of blocks, as in the exchange of gradients. A kernel treats a block as it treats the same elements of the whole
parameter, so a division does not change the bits of an element-wise step.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

_BLOCK = 128  # elements; a multiple of all vector registers


class Slice(NamedTuple):
    """Elements of one parameter. parameter: its number in the optimizer."""

    parameter: int
    start: int
    stop: int


class SliceLayout:
    """sizes: elements of each parameter."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._firsts = [0]
        for size in sizes:
            self._firsts.append(self._firsts[-1] + -(-size // _BLOCK))

    @property
    def num_blocks(self) -> int:
        return self._firsts[-1]

    def owned(self, rank: int, num_workers: int) -> range:
        """The blocks of one worker."""
        return range(rank * self.num_blocks // num_workers, (rank + 1) * self.num_blocks // num_workers)

    def slices(self, blocks: range) -> list[Slice]:
        """The slices of these blocks, in order."""
        return list(self._slices(blocks))

    def _slices(self, blocks: range) -> Iterator[Slice]:
        for number, (first, size) in enumerate(zip(self._firsts, self._sizes, strict=False)):
            start = max(blocks.start - first, 0) * _BLOCK
            stop = min((blocks.stop - first) * _BLOCK, size)
            if start < stop:
                yield Slice(number, start, stop)


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of a tensor without holes."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def overlap(one: range, other: range) -> bool:
    """Whether two ranges of blocks have some in common."""
    return max(one.start, other.start) < min(one.stop, other.stop)


def state_of(slices: Sequence[Slice], parts: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The state of each slice, by its number. parts: `ShardedOptimizer.state_dict` of the workers that have it."""
    numbers = {each.parameter: number for number, each in enumerate(slices)}
    state: dict[int, dict[str, Any]] = {}
    for part in parts:
        for index, theirs in enumerate(map(Slice._make, part["slices"])):
            number = numbers.get(theirs.parameter)
            if number is None:
                continue
            own = slices[number]
            start, stop = max(own.start, theirs.start), min(own.stop, theirs.stop)
            if start >= stop:
                continue
            for name, value in part["state"].get(index, {}).items():
                mine = state.setdefault(number, {})
                if not is_divided(value):
                    mine[name] = value
                    continue
                joined = mine.setdefault(name, torch.empty(own.stop - own.start, dtype=value.dtype))
                joined[start - own.start : stop - own.start] = value[start - theirs.start : stop - theirs.start]
    return state


def whole_state(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state_dict of an optimizer that owns all parameters. parts: of all workers."""
    layouts = parts[0]["layouts"]
    of_parameters = state_of([Slice(number, 0, prod(shape)) for number, (shape, _) in enumerate(layouts)], parts)
    state = {
        number: {
            name: value.as_strided(*layouts[number]) if is_divided(value) else value for name, value in values.items()
        }
        for number, values in of_parameters.items()
    }
    first = 0
    groups: list[dict[str, Any]] = []
    for group, size in zip(parts[0]["param_groups"], parts[0]["group_sizes"], strict=True):
        groups.append({**group, "params": list(range(first, first + size))})
        first += size
    return {"state": state, "param_groups": groups}


def is_divided(value: Any) -> bool:
    """Whether a part of the state has one number for each element of its slice."""
    return isinstance(value, torch.Tensor) and value.dim() == 1
