"""Moves the parts of a sharded optimizer's state to their owners in a new generation, from memory to memory.

Workers hold contiguous ranges of blocks. A range that its new owner does not hold comes from the workers that do, all
at once. A part that only a lost worker held is in no memory: the job continues from its newest checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from elasticflow.services.executor.worker.checkpoint.parameter_slices import Slice, is_divided
from elasticflow.services.executor.worker.engine.sharded_optimizer import Groups, ShardedOptimizer
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.state_transfer import bytes_of
from elasticflow.services.executor.worker.group.transport import Transfer


@dataclass(eq=False)
class PartLost(PeerLost):
    """No worker of the new generation holds it; a checkpoint does."""


@dataclass(frozen=True, slots=True)
class _Description:
    """What one worker holds. of_parameter: by name, the type of a divided value, or the value itself."""

    held: range
    of_parameter: Mapping[int, Mapping[str, Any]]
    groups: Groups

    @property
    def plain(self) -> tuple[int, int, dict[int, Mapping[str, Any]], list[Any]]:
        """It as a value that workers may send each other."""
        return self.held.start, self.held.stop, dict(self.of_parameter), list(self.groups)

    @classmethod
    def of_plain(cls, plain: tuple[int, int, dict[int, Mapping[str, Any]], list[Any]]) -> "_Description":
        start, stop, of_parameter, groups = plain
        return cls(range(start, stop), of_parameter, groups)


_Arrived = tuple[_Description, range, torch.Tensor]  # the sender's description, the blocks, and their bytes


def redistribute(optimizer: ShardedOptimizer, group: Group | None, num_staying: int) -> int:
    """A collective of all workers of a rendezvous: its first num_staying ranks get the parts that they own next.

    group: None for a worker that is alone. Returns the number of bytes that this worker received. If it raises
    PeerLost, this worker keeps what it held; PartLost: no worker holds some part any more.
    """
    layout = optimizer.layout
    if group is None:
        moves(layout.owned(0, 1), [optimizer.held], 0)
        return 0
    mine = _description(optimizer)
    parts = [_Description.of_plain(group.broadcast_object(mine.plain, source=rank)) for rank in range(group.size)]
    held = [part.held for part in parts]
    plan = [moves(layout.owned(rank, num_staying), held, rank) for rank in range(num_staying)]
    sends = [
        Transfer(packed, rank, tag)
        for rank, of_rank in enumerate(plan)
        for tag, (source, blocks) in enumerate(of_rank)
        if source == group.rank != rank and (packed := _packed(optimizer, blocks)).numel()
    ]
    arrived: list[_Arrived] = []
    receives: list[Transfer] = []
    for tag, (source, blocks) in enumerate(plan[group.rank] if group.rank < num_staying else ()):
        if source == group.rank:
            packed = _packed(optimizer, blocks)
        else:
            packed = torch.empty(sum(_sizes(parts[source], layout.slices(blocks))), dtype=torch.uint8)
            receives += [Transfer(packed, source, tag)] if packed.numel() else []
        arrived.append((parts[source], blocks, packed))
    group.exchange(sends, receives)
    group.barrier()
    if group.rank < num_staying:
        owned = layout.owned(group.rank, num_staying)
        groups = mine.groups if mine.held else next(part.groups for part in parts if part.held)
        optimizer.replace(owned, _unpacked(layout.slices(owned), optimizer, arrived), groups)
    return sum(transfer.tensor.numel() for transfer in receives)


def moves(owned: range, held: Sequence[range], rank: int) -> list[tuple[int, range]]:
    """The rank from which each part of the owned blocks comes; the own one where possible. Raises PartLost.

    held: blocks of each rank.
    """
    order = sorted(range(len(held)), key=lambda each: each != rank)
    found: list[tuple[int, range]] = []
    position = owned.start
    while position < owned.stop:
        source = next((each for each in order if position in held[each]), None)
        if source is None:
            raise PartLost(
                "a part of the optimizer's state was lost with its worker: the job continues from its newest checkpoint"
            )
        stop = min(held[source].stop, owned.stop)
        found.append((source, range(position, stop)))
        position = stop
    return found


def _description(optimizer: ShardedOptimizer) -> _Description:
    of_parameter = {
        each.parameter: {name: value.dtype if is_divided(value) else value for name, value in state.items()}
        for number, each in enumerate(optimizer.slices)
        if (state := optimizer.value_of(number))
    }
    return _Description(optimizer.held, of_parameter, optimizer.state_dict()["param_groups"])


def _packed(optimizer: ShardedOptimizer, blocks: range) -> torch.Tensor:
    """The divided values of these blocks, as bytes on the host."""
    numbers = {each.parameter: number for number, each in enumerate(optimizer.slices)}
    pieces = [torch.empty(0, dtype=torch.uint8)]
    for each in optimizer.layout.slices(blocks):
        number = numbers[each.parameter]
        first = optimizer.slices[number].start
        pieces += [
            bytes_of(value[each.start - first : each.stop - first].cpu())
            for value in optimizer.value_of(number).values()
            if is_divided(value)
        ]
    return torch.cat(pieces)


def _sizes(part: _Description, slices: Sequence[Slice]) -> Iterator[int]:
    """Bytes of the divided values."""
    for each in slices:
        for kind in part.of_parameter.get(each.parameter, {}).values():
            if isinstance(kind, torch.dtype):
                yield (each.stop - each.start) * kind.itemsize


def _unpacked(
    owned: Sequence[Slice], optimizer: ShardedOptimizer, arrived: Sequence[_Arrived]
) -> dict[int, dict[str, Any]]:
    """The state of each owned slice, by number."""
    numbers = {each.parameter: number for number, each in enumerate(owned)}
    state: dict[int, dict[str, Any]] = {}
    for part, blocks, packed in arrived:
        position = 0
        for each in optimizer.layout.slices(blocks):
            own = owned[numbers[each.parameter]]
            for name, kind in part.of_parameter.get(each.parameter, {}).items():
                mine = state.setdefault(numbers[each.parameter], {})
                if not isinstance(kind, torch.dtype):
                    mine[name] = kind
                    continue
                whole = mine.setdefault(name, torch.empty(own.stop - own.start, dtype=kind))
                into = bytes_of(whole[each.start - own.start : each.stop - own.start])
                into.copy_(packed[position : position + into.numel()])
                position += into.numel()
    return state
