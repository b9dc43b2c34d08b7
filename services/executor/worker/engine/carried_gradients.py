"""Gradients that outlive their step, for example of parameters that no optimizer clears, or of a job that steps every
n-th iteration. They are state of the job: later backward passes add to them.

Most jobs clear their gradients before the next backward pass, so nothing of them is copied, stored or sent. What a
worker has seen of that is state, too: all workers must send the same tensors, also those that have just joined.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

Gradients = list[torch.Tensor | None]


class CarriedGradients:
    """sees_backward: `note_backward` is called in each step, so that a step shows which gradients the last one left."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, sees_backward: bool = True) -> None:
        self._model, self._optimizer = model, optimizer
        self._sees_backward = sees_backward
        self._carried: frozenset[int] | None = None  # ids of parameters; None: no step has shown it yet
        self._has_stepped = True  # the optimizer, in the last step
        self._had_gradients = False  # some parameter, when the step began
        self._at_boundary: Mapping[str, Any] = {}  # the state when the step began, with copies
        optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: object) -> None:
        self._has_stepped = True

    def begin_step(self) -> None:
        """Copies what this step may need, and a repeated one again."""
        self._had_gradients = any(parameter.grad is not None for parameter in self._parameters)
        state = self.state()
        self._at_boundary = state | {"tensors": {i: tensor.clone() for i, tensor in state["tensors"].items()}}
        self._has_stepped = False

    def note_backward(self, parameters: Sequence[torch.Tensor], gradients: Gradients) -> None:
        """Note the first backward pass of a step. gradients: those to which it adds."""
        if self._had_gradients:
            there = zip(parameters, gradients, strict=True)
            self._carried = frozenset(id(parameter) for parameter, gradient in there if gradient is not None)

    def state(self) -> dict[str, Any]:
        """The state at a step boundary. tensors: what the next step may add to, by position among `parameters_of`; not
        copied. carried: positions, or None. has_stepped: the optimizer, in the last step."""
        by_optimizer = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        parameters = self._parameters
        return {
            "tensors": {
                i: parameter.grad.detach()
                for i, parameter in enumerate(parameters)
                if parameter.grad is not None and self._may_be_carried(id(parameter), by_optimizer)
            },
            "carried": None
            if self._carried is None
            else [i for i, parameter in enumerate(parameters) if id(parameter) in self._carried],
            "has_stepped": self._has_stepped,
        }

    def _may_be_carried(self, parameter: int, by_optimizer: set[int]) -> bool:
        if not self._has_stepped:
            return True
        if self._carried is None:
            return self._sees_backward or parameter not in by_optimizer
        return parameter in self._carried

    def load(self, state: Mapping[str, Any]) -> None:
        """Make the own state the same as this one, at a step boundary. An empty state is that of a job without a
        step."""
        parameters, tensors = self._parameters, state.get("tensors", {})
        for i, parameter in enumerate(parameters):
            gradient = tensors.get(i)
            # in the memory order of the parameter, as autograd has it
            parameter.grad = None if gradient is None else torch.empty_like(parameter.detach()).copy_(gradient)
        carried = state.get("carried")
        self._carried = None if carried is None else frozenset(id(parameters[i]) for i in carried)
        self._has_stepped = state.get("has_stepped", True)

    def roll_back(self) -> None:
        """Restore the gradients that a failed step began with."""
        self.load(self._at_boundary)

    @property
    def _parameters(self) -> list[torch.Tensor]:
        return parameters_of(self._model, self._optimizer)


def parameters_of(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All parameters of the model, then those that only an optimizer has, each once."""
    groups = [parameter for each in optimizers for group in each.param_groups for parameter in group["params"]]
    return list({id(p): p for p in (*model.parameters(), *groups)}.values())
