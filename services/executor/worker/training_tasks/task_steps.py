"""The two halves of a step whose gradients are tasks: a runner's, up to the gradients, and the manager's, from them on.

A runner calls train() with the micro-batches of one virtual node. The calls continue behind `backward()` without
effect: the gradients that they find are not-a-number, and the optimizer does not step. The manager calls train() once,
with the last micro-batch, and skips its backward pass. That call finds the gradient of the global batch, and its
optimizer steps. A metric that depends on gradients is not-a-number in all runners: the manager's call gives it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import Buffers, buffers_of, parameters_of
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.tree_reduce import Tensors
from elasticflow.services.executor.worker.interface import TrainingFailed, TrainingFunction

Metrics = Mapping[str, float]
_ONE_PART = "needs all parts of a batch at once, but a task of a padding load has one: submit the job instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one virtual node adds to a step. changed: buffers by index, and metrics, of each of its micro-batches."""

    gradients: Tensors
    changed: Sequence[dict[int, torch.Tensor]]
    metrics: Sequence[Metrics]
    is_over: bool


class StepTasksServer(Protocol):
    """Has the tasks of one step after another executed."""

    def begin(self, iteration: int, tensors: Sequence[torch.Tensor]) -> None: ...
    def contributions(self) -> Sequence[Contribution]:
        """Wait for one of each virtual node."""
        ...


def tensors_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All on which a gradient depends: the parameters, then the buffers."""
    return [*parameters_of(model, optimizer), *buffers_of(model)]


class VirtualNodeSteps(BitwiseSteps):
    """The runner's half. Serves one task, and leaves the model as it was."""

    _whole_batch_refusal = _ONE_PART
    keeps_changes = False
    gradients: Tensors | None = None
    _has_stepped = False

    def contribution(
        self, iteration: int, calls: Sequence[Callable[[], Metrics]], function: TrainingFunction
    ) -> Contribution:
        """Raises TrainingFailed if train() does anything that one virtual node alone cannot do."""
        metrics = self.run(iteration, calls)
        if self.gradients is None or not self._has_stepped:
            raise _unsupported("neither" if self.gradients is None else "backward() only")
        if not all(map(_same, self._changed, self._buffers.changed_values())):
            raise TrainingFailed(
                "train() changes the model's buffers after backward(), where a task of a padding load does not have "
                "the gradient of the global batch: change them before, or submit the job instead"
            )
        return Contribution(
            gradients=self.gradients, changed=self._changed, metrics=metrics, is_over=bool(function.is_over)
        )

    def _summed_gradients(self) -> Tensors:
        if self.gradients is not None:
            raise _unsupported("backward() twice")
        self.gradients = super()._summed_gradients()
        self._buffers.activate(None)
        self._changed = self._buffers.changed_values()
        return [None if gradient is None else torch.full_like(gradient, math.nan) for gradient in self.gradients]

    def _finish_step(self, step: Callable[[], Any]) -> None:
        if self.gradients is None or self._has_stepped:
            raise _unsupported("optimizer.step() twice" if self._has_stepped else "optimizer.step() first")
        self._has_stepped = True


class ManagerSteps(BitwiseSteps):
    """The manager's half."""

    _whole_batch_refusal = _ONE_PART

    def __init__(
        self,
        server: StepTasksServer,
        function: TrainingFunction,
        *arguments: Any,
        members: GenerationMembers,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, members=members, computed=members.computed[-1:], **more)
        self._server, self._function = server, function
        self._virtual_nodes = members.virtual_nodes
        self._buffers = Buffers(self.model, members.computed)
        self._contributions: Sequence[Contribution] = ()

    def run(self, iteration: int, calls: Sequence[Callable[[], Metrics]]) -> list[Metrics]:
        buffers = [buffer.detach().clone() for buffer in buffers_of(self.model)]  # the call here changes its own
        self._server.begin(iteration, [*parameters_of(self.model, self._optimizer), *buffers])
        (own,) = super().run(iteration, calls)
        metrics = [each for contribution in self._contributions for each in contribution.metrics]
        self._function.is_over |= any(contribution.is_over for contribution in self._contributions)
        self._contributions = ()
        unknown = [name for name in own if all(math.isnan(each.get(name, 0.0)) for each in metrics)]
        return [{**each, **{name: own[name] for name in unknown}} for each in metrics]

    def _add_gradients(self, micro_batch: MicroBatch, *_: Any, **__: Any) -> None:
        """The tasks do."""

    def _summed_gradients(self) -> Tensors:
        self._contributions = self._server.contributions()
        for virtual_node, contribution in enumerate(self._contributions):
            last = self._virtual_nodes.micro_batches(virtual_node)[-1]
            gradients = zip(self._trained, contribution.gradients, strict=True)
            self._gradients.push(last, [None if theirs is None else _laid_out(theirs, p) for p, theirs in gradients])
        device = self._trained[0].device
        changed = [each for contribution in self._contributions for each in contribution.changed]
        self._buffers.replace_changes([{i: value.to(device) for i, value in each.items()} for each in changed])
        return super()._summed_gradients()


def _laid_out(received: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The received elements in the memory order of the parameter, as autograd has them: sums of a tensor depend on
    it."""
    return torch.empty_like(parameter, requires_grad=False).copy_(received)


def _same(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[i], other[i], rtol=0.0, atol=0.0, equal_nan=True) for i in one
    )


def _unsupported(reached: str) -> TrainingFailed:
    return TrainingFailed(
        "as tasks of a padding load, each call of train() must take one backward() and then one optimizer.step(), but "
        f"it took {reached}: submit the job instead"
    )
