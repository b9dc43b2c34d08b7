"""A step that gives the same bits at any number of workers: the user's train() once for each virtual node, or, where
its memory does not hold one at once, for each micro-batch.

The calls go in lockstep. Where one has done its backward pass, its gradients are folded into the tree and the next
one runs; after the last, the sum is finished between the workers and all go on with the gradient of the global batch,
as on one device. The optimizer's step is taken once, when all of them have asked for it.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import repeat
from typing import Any, Protocol

import torch
from torch import nn

from services.executor.worker.buffers import Buffers
from services.executor.worker.loading import seed_generators
from services.executor.worker.membership import Membership
from services.executor.worker.pacing import Pacer
from services.executor.worker.shared_gradients import SharedGradients
from services.executor.worker.stopwatch import Stopwatch
from services.executor.worker.training_function import TrainingFailed
from services.executor.worker.tree_reduce import Tensors, TensorSum
from services.executor.worker.virtual_nodes import Phase, seed_of

_BACKWARD = "backward()"
_STEP = "optimizer.step()"
POINTS = (_BACKWARD, _STEP)


class Calls(Protocol):
    """How the calls of one step take turns: `Lockstep`, or `InTurn` where they are passes through one loop."""

    running: int | None  # the call whose turn it is
    num_going_on: int  # of them, after a meeting

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]: ...
    def meet(self, point: str) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...


class TakeTurns(Protocol):
    """size: how many calls there are. before(i): before call i goes on. meeting(point): when all are there."""

    def __call__(
        self, size: int, *, before: Callable[[int], None], meeting: Callable[[str], None]
    ) -> Calls: ...


class BitwiseSteps:
    """Takes over torch's backward() and the optimizer's step() in this process, until it is closed."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        members: Membership,
        job_seed: int,
        pacer: Pacer,
        stopwatch: Stopwatch,
        take_turns: TakeTurns,
    ) -> None:
        self.model = model
        self._job_seed = job_seed
        self._pacer = pacer
        self._stopwatch = stopwatch
        self._all_parameters = _parameters(model, optimizer)
        self._trained: list[torch.Tensor] = []  # those of them that are not frozen
        self._iteration = 0
        self._num_meetings = 0
        self._seed_of_all = 0  # since the last of them
        self._is_hooked = False  # the user's hooks must see the gradient of one virtual node
        self._in_backward = False
        self._before_backward: Tensors = []  # gradients that train() has not set to zero
        self._shared = SharedGradients()
        self._optimizer = optimizer
        self._backward_of_torch = torch.autograd.backward
        self._step_of_optimizer = optimizer.step
        torch.autograd.backward = self._backward  # Tensor.backward, too, ends here
        optimizer.step = self._in_place_of(optimizer.step)
        self.computed = members.computed
        self._group = members.group
        self._gradients = TensorSum(members.virtual_nodes, members.group)
        self._buffers = Buffers(self.model, self.computed)
        self._buffer_sum = TensorSum(members.virtual_nodes, members.group)
        self._calls = take_turns(len(self.computed), before=self._before, meeting=self._meeting)

    def close(self) -> None:
        """Between two steps, for others to take its place."""
        self._calls.close()
        del self._calls  # they call back to here: buffers and group would wait for the garbage collector
        torch.autograd.backward = self._backward_of_torch
        self._optimizer.step = self._step_of_optimizer

    def run(self, iteration: int, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each micro-batch's call of train() returns."""
        self._iteration = iteration
        self._num_meetings = 0
        results = self._calls.run(calls)
        self._buffers.begin_turn(None)
        return results

    def take_back(self) -> None:
        """A step that has failed before the optimizer's: nothing of it stays."""
        self._calls.abandon()
        self._buffers.take_back()
        self._shared.forget()
        self._before_backward = []

    def changed_buffers(self) -> list[list[float]]:
        """For each micro-batch computed here and each buffer of the model: 1 if it was changed."""
        return self._buffers.changes()

    def combine_buffers(self, changed: Sequence[int]) -> None:
        self._buffers.combine(changed, self._buffer_sum)

    # --- between the calls ---

    def _before(self, index: int) -> None:
        self._buffers.begin_turn(index)
        if self._num_meetings == 0:
            if self._group is not None:
                self._group.check_open()  # who is told of a loss need not compute the step to its end
            mine = self.computed[index]
            of_mine = {"virtual_node": mine.virtual_node, "micro_batch": mine.index}
            seed_generators(seed_of(self._job_seed, Phase.TRAIN, iteration=self._iteration, **of_mine))
        else:  # from here on they do the same, to the same gradients
            self._shared.restore()
            seed_generators(self._seed_of_all)

    def _meeting(self, point: str) -> None:
        phase = Phase.AFTER_MEETING + self._num_meetings
        self._seed_of_all = seed_of(self._job_seed, phase, iteration=self._iteration)
        self._num_meetings += 1
        if self._num_meetings == 1:
            self._stopwatch.lap()
        if point == _BACKWARD:
            self._pacer.pace()
            self._shared.share(
                self._trained,
                self._gradients.finish(self._trained),
                before=self._before_backward,
                num_calls=self._calls.num_going_on,
            )
            self._before_backward = []
        else:
            self._shared.forget()
            self._settle_buffers()
            self._step_of_optimizer()

    def _settle_buffers(self) -> None:
        """Before anything changes for good: after this the step needs nobody else, but for what train() changes yet."""
        self._buffers.begin_turn(None)
        mine = torch.tensor(self._buffers.changes(), dtype=torch.uint8).amax(0)
        if mine.numel() and self._group is not None:
            mine = torch.stack(self._group.all_gather(mine)).amax(0)
        self.combine_buffers(mine.nonzero().flatten().tolist())

    # --- within a call ---

    def _backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        running = self._calls.running
        if running is None or self._in_backward:  # e.g. in evaluate, or inside of a backward pass
            self._backward_of_torch(tensors, grad_tensors, *args, **kwargs)
            return
        if running == 0:
            self._trained = [parameter for parameter in self._all_parameters if parameter.requires_grad]
            self._is_hooked = any(parameter._post_accumulate_grad_hooks for parameter in self._trained)
        before = [parameter.grad for parameter in self._trained]
        micro_batch = self.computed[running]
        onto = None if self._is_hooked else self._gradients.take_onto(micro_batch)
        for parameter, gradient in zip(self._trained, onto or repeat(None), strict=False):
            parameter.grad = gradient  # autograd adds to it, while what it adds is in the cache
        self._in_backward = True
        try:
            weighted = _weighted(tensors, grad_tensors, micro_batch.weight)
            self._backward_of_torch(tensors, weighted, *args, **kwargs)
            with torch.no_grad():
                self._gradients.push(micro_batch, [_dense_gradient(p) for p in self._trained])
        finally:
            self._in_backward = False
            for parameter, gradient in zip(self._trained, before, strict=True):
                parameter.grad = gradient
        if running == 0:
            self._before_backward = [None if gradient is None else gradient.clone() for gradient in before]
        self._calls.meet(_BACKWARD)

    def _in_place_of(self, step: Callable[..., Any]) -> Any:
        @wraps(step)  # torch's schedules look for a mark of theirs on it
        def step_together(closure: Any = None) -> None:
            self._step(closure)

        return step_together

    def _step(self, closure: Any = None) -> None:
        if closure is not None:
            raise TrainingFailed(
                'optimizer.step(closure) runs more than one backward pass: set reproducible = "fast" for it'
            )
        if self._calls.running is None:
            self._step_of_optimizer()
        else:
            self._calls.meet(_STEP)


def _parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All that the job may train, each once: the model's, then what the optimizer has besides."""
    groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return list({id(p): p for p in (*model.parameters(), *groups)}.values())


def _dense_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    if parameter.grad is None:
        return None
    if parameter.grad.layout is not torch.strided:
        raise TrainingFailed(
            'the model has sparse gradients: make them dense, or set reproducible = "fast" for them'
        )
    return parameter.grad.detach()


def _weighted(tensors: Any, grad_tensors: Any, weight: float) -> Any:
    """What the backward pass begins with, so that a mean over a part counts by its size in the global batch."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    given = (
        [grad_tensors]
        if isinstance(grad_tensors, torch.Tensor)
        else list(grad_tensors or [None] * len(roots))
    )
    return [
        torch.full_like(root, weight)
        if grad is None and root.numel() == 1
        else grad
        if grad is None
        else grad * weight
        for root, grad in zip(roots, given, strict=True)
    ]
