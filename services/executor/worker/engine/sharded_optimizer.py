"""An optimizer of which each worker holds and computes a part (ZeRO, stage 1): the same bits, a part of the memory.

A worker has the gradient of the global batch for all parameters. In its step the optimizer sees slices of parameters
instead of parameters; then the workers exchange the changed slices. At a change of workers, parts of the state move to
their new owners. A part that only a lost worker held is lost.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

from elasticflow.services.executor.worker.checkpoint.parameter_slices import Slice, SliceLayout, in_memory_order
from elasticflow.services.executor.worker.group.groups import Group
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
        _require_divisible(optimizer)
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


def _require_divisible(optimizer: torch.optim.Optimizer) -> None:
    if type(optimizer) not in _ELEMENT_WISE:
        names = ", ".join(each.__name__ for each in _ELEMENT_WISE)
        raise TrainingFailed(
            f"shard_optimizer: {type(optimizer).__name__} is not known to treat each element of a parameter by itself: "
            f"use one of torch's {names}, or leave shard_optimizer out"
        )
    if any(not _is_dense(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        raise TrainingFailed(
            "shard_optimizer: a parameter has holes between its elements in memory: make it contiguous, or leave "
            "shard_optimizer out"
        )


def _is_dense(tensor: torch.Tensor) -> bool:
    spanned = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() in (0, spanned)
