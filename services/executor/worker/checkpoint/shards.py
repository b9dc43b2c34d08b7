"""A state of which the workers of a gang have a shard each: marked, taken out, put back, and made whole. Pure.

A shard is some rows of a tensor: the first dimension is divided over the gang, in order of positions. A state carries
its shards as marked dicts of plain values, so it travels and is stored as any other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

_SHARD = "elasticflow:shard"  # a key that no state of users has
_SHAPE = "shape"


def shard(local: torch.Tensor, shape: Sequence[int]) -> dict[str, Any]:
    """The mark. shape: of the whole tensor."""
    return {_SHARD: local, _SHAPE: list(shape)}


def replaced(state: Any, replace: Callable[[Any], Any]) -> Any:
    """The nested state with what `replace` returns in place of each leaf and each shard."""
    match state:
        case dict() if _SHARD not in state:
            values = cast(dict[Any, Any], state)
            return {key: replaced(value, replace) for key, value in values.items()}
        case list() | tuple():
            values = cast(Sequence[Any], state)
            return type(state)(replaced(value, replace) for value in values)
        case _:
            return replace(state)


def with_tensors(state: Any, tensor_of: Callable[[torch.Tensor, torch.Size], Any]) -> Any:
    """The state with a tensor in place of each shard. tensor_of: of the rows here, and the shape of the whole."""
    return replaced(state, lambda leaf: tensor_of(leaf[_SHARD], torch.Size(leaf[_SHAPE])) if _is_shard(leaf) else leaf)


def without_shards(state: Any) -> tuple[Any, list[torch.Tensor]]:
    """What all workers of a gang have in common, with a number in place of each shard; and the shards, by number."""
    shards: list[torch.Tensor] = []

    def take(leaf: Any) -> Any:
        if not _is_shard(leaf):
            return leaf
        shards.append(leaf[_SHARD])
        return {**leaf, _SHARD: len(shards) - 1}

    return replaced(state, take), shards


def with_shards(common: Any, shards: Sequence[torch.Tensor]) -> Any:
    """The state that `without_shards` has divided."""
    return replaced(common, lambda leaf: {**leaf, _SHARD: shards[leaf[_SHARD]]} if _is_shard(leaf) else leaf)


def whole(common: Any, shards_by_position: Sequence[Sequence[torch.Tensor]]) -> Any:
    """The state of a worker that holds all of each tensor. Each tensor is copied when it is its turn."""

    def join(leaf: Any) -> Any:
        if not _is_shard(leaf):
            return leaf
        rows = [shards[leaf[_SHARD]] for shards in shards_by_position]
        return torch.cat([each for each in rows if each.numel()] or rows[:1])

    return replaced(common, join)


def _is_shard(leaf: Any) -> bool:
    return isinstance(leaf, Mapping) and _SHARD in leaf
