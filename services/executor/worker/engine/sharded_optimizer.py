"""An optimizer of which each worker holds and computes a part (ZeRO, stage 1): the same bits, a part of the memory.

A worker has the gradient of the global batch for all parameters. In its step the optimizer sees slices of parameters
instead of parameters; then the workers exchange the changed slices. At a change of workers, parts of the state move to
their new owners. A part that only a lost worker held is lost.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn

from elasticflow.services.executor.worker.checkpoint.files import Slice, SliceLayout, in_memory_order, is_divided
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.state_transfer import bytes_of
from elasticflow.services.executor.worker.group.transport import Transfer
from elasticflow.services.executor.worker.interface import TrainingFailed

_ELEMENT_WISE: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
)


Groups = Sequence[Mapping[str, Any]]  # settings of each parameter group


class ShardedOptimizer:
    """Replaces the step of an optimizer. Owns all parameters until `own`.

    held: the blocks of the layout whose state this worker holds. slices: these, by parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises TrainingFailed if parts of its step would differ from the whole step."""
        require_divisible(optimizer, "shard_optimizer", "or leave shard_optimizer out")
        self._optimizer = optimizer
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.layout = SliceLayout([parameter.numel() for parameter in self._parameters])
        self._group: Group | None = None
        self._is_swapped = False
        self._own_blocks(self.layout.owned(0, 1))
        self._step_of_optimizer = optimizer.step
        optimizer.step = self._sharded(optimizer.step)
        optimizer.register_state_dict_pre_hook(self._refuse_state_dict)

    def own(self, group: Group | None) -> None:
        """Own a part, as a member of a generation, before the state of a job is loaded."""
        self.join(group)
        self._own_blocks(self.layout.owned(*_place(group)))

    def join(self, group: Group | None) -> None:
        """Exchange parameters in this group from now on. None: this worker is alone."""
        self._group = group

    def drop(self) -> None:
        """Forget all state: it belongs to an older step."""
        self._own_blocks(range(0))

    # --- the step ---

    def _sharded(self, step: Callable[..., Any]) -> Any:
        @wraps(step)  # torch's schedules look for their mark on it
        def sharded_step(closure: Any = None) -> None:
            self._step(closure)

        return sharded_step

    def _step(self, closure: Any = None) -> None:
        if closure is not None:
            raise TrainingFailed("optimizer.step(closure) cannot be sharded: leave shard_optimizer out")
        for each, view in zip(self.slices, self._views, strict=True):
            view.grad = _gradient_of(self._parameters[each.parameter], each)
        try:
            with self._swapped():
                self._step_of_optimizer()
        finally:
            for view in self._views:
                view.grad = None
        if self._group is not None:
            self._exchange(self._group)

    def _exchange(self, group: Group) -> None:
        """Give all workers the slices that each has changed."""
        owned = [self.layout.slices(self.layout.owned(rank, group.size)) for rank in range(group.size)]
        mine = self._parameters[0].new_empty(0, dtype=torch.uint8)
        if self._views:
            mine = torch.cat([bytes_of(view) for view in self._views])
        peers = [rank for rank in range(group.size) if rank != group.rank]
        views = {peer: [bytes_of(self._view(each)) for each in owned[peer]] for peer in peers}
        received = {peer: mine.new_empty(sum(view.numel() for view in views[peer])) for peer in peers}
        group.exchange(
            [Transfer(mine, peer) for peer in peers if mine.numel()],
            [Transfer(theirs, peer) for peer, theirs in received.items() if theirs.numel()],
        )
        group.check_received()
        with torch.no_grad():
            for peer in peers:
                for view, theirs in zip(views[peer], _divided(received[peer], views[peer]), strict=True):
                    view.copy_(theirs)

    # --- the state ---

    def state_dict(self) -> dict[str, Any]:
        """This worker's part; `whole_state` joins the parts."""
        with self._swapped():
            part = self._optimizer.state_dict()
        return {
            **part,
            "slices": [tuple(each) for each in self.slices],
            "layouts": [(tuple(each.shape), each.stride()) for each in self._parameters],
            "group_sizes": [len(group["params"]) for group in self._optimizer.param_groups],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A state of the whole optimizer, or this worker's own part."""
        of_slices = state["state"]
        if "slices" not in state:
            of_slices = {
                index: {name: _cut(value, self._parameters[each.parameter], each) for name, value in whole.items()}
                for index, each in enumerate(self.slices)
                if (whole := of_slices.get(each.parameter)) is not None
            }
        self._load(of_slices, state["param_groups"])

    def _load(self, of_slices: Mapping[int, Mapping[str, Any]], groups: Groups) -> None:
        """of_slices: the state of each slice, by number. groups: with the settings."""
        with self._swapped():
            first = 0
            numbered: list[dict[str, Any]] = []
            for group, present in zip(groups, self._optimizer.param_groups, strict=True):
                numbered.append({**group, "params": list(range(first, first + len(present["params"])))})
                first += len(present["params"])
            self._optimizer.load_state_dict({"state": dict(of_slices), "param_groups": numbered})

    def value_of(self, number: int) -> Mapping[str, Any]:
        """The state of one of this worker's slices, by name."""
        return self._optimizer.state.get(self._views[number], {})

    def replace(self, blocks: range, of_slices: Mapping[int, Mapping[str, Any]], groups: Groups) -> None:
        """Own and hold these blocks from now on."""
        self._own_blocks(blocks)
        self._load(of_slices, groups)

    # --- slices ---

    def _own_blocks(self, blocks: range) -> None:
        self.held = blocks
        self.slices = self.layout.slices(blocks)
        self._views = [nn.Parameter(self._view(each)) for each in self.slices]
        self._optimizer.state.clear()

    def _view(self, each: Slice) -> torch.Tensor:
        return in_memory_order(self._parameters[each.parameter])[each.start : each.stop]

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        """The optimizer has this worker's slices in place of its parameters."""
        whole = [group["params"] for group in self._optimizer.param_groups]
        views = {each.parameter: view for each, view in zip(self.slices, self._views, strict=True)}
        first = 0
        for group, parameters in zip(self._optimizer.param_groups, whole, strict=True):
            numbers = range(first, first + len(parameters))
            group["params"] = [views[number] for number in numbers if number in views]
            first = numbers.stop
        self._is_swapped = True
        try:
            yield
        finally:
            self._is_swapped = False
            for group, parameters in zip(self._optimizer.param_groups, whole, strict=True):
                group["params"] = parameters

    def _refuse_state_dict(self, _: torch.optim.Optimizer) -> None:
        if not self._is_swapped:
            raise TrainingFailed(
                "optimizer.state_dict() has only this worker's part with shard_optimizer: take the state from a "
                "checkpoint of the job"
            )


def _gradient_of(parameter: torch.Tensor, each: Slice) -> torch.Tensor | None:
    gradient = parameter.grad
    if gradient is None:
        return None
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter).copy_(gradient)
    return in_memory_order(gradient)[each.start : each.stop]


def _cut(value: Any, parameter: torch.Tensor, each: Slice) -> Any:
    """The part of a whole value that belongs to a slice."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        return value
    laid_out = torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)
    return in_memory_order(laid_out)[each.start : each.stop].clone()


def _divided(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return flat.split([each.numel() for each in like]) if like else ()


def _place(group: Group | None) -> tuple[int, int]:
    return (0, 1) if group is None else (group.rank, group.size)


def require_divisible(optimizer: torch.optim.Optimizer, option: str, instead: str) -> None:
    """Raises TrainingFailed if parts of its step would differ from the whole step. option: that divides it."""
    if type(optimizer) not in _ELEMENT_WISE:
        names = ", ".join(each.__name__ for each in _ELEMENT_WISE)
        raise TrainingFailed(
            f"{option}: {type(optimizer).__name__} is not known to treat each element of a parameter by itself: "
            f"use one of torch's {names}, {instead}"
        )
    if any(not _is_dense(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        raise TrainingFailed(
            f"{option}: a parameter has holes between its elements in memory: make it contiguous, {instead}"
        )


def _is_dense(tensor: torch.Tensor) -> bool:
    spanned = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() in (0, spanned)


# --- redistribution -----------------------------------------------------------------------------------
# Moves the parts of a sharded optimizer's state to their owners in a new generation, from memory to memory.
#
# Workers hold contiguous ranges of blocks. A range that its new owner does not hold comes from the workers that do, all
# at once. A part that only a lost worker held is in no memory: the job continues from its newest checkpoint.


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
