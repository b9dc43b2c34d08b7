"""The gradient of the global batch, as every call of train() finds it after a backward pass."""

from collections.abc import Sequence

import torch

from services.executor.worker.tree_reduce import Tensors


class SharedGradients:
    """Calls go on one after another, and one may change the gradients in place, e.g. clip them: the next must not see
    that."""

    def __init__(self) -> None:
        self._parameters: Sequence[torch.Tensor] = ()
        self._gradients: Tensors = []
        self._untouched: Tensors = []  # copies, for the calls after the first
        self._versions: list[int] = []  # as torch counts changes in place

    def share(
        self, parameters: Sequence[torch.Tensor], gradients: Tensors, *, before: Tensors, num_calls: int
    ) -> None:
        """before: gradients that were there before the backward pass; they are added. num_calls: that will go on."""
        with torch.no_grad():
            for earlier, gradient in zip(before, gradients, strict=True):
                if earlier is not None and gradient is not None:
                    gradient.add_(earlier)
        self._parameters = parameters
        self._gradients = [
            earlier if gradient is None else gradient
            for earlier, gradient in zip(before, gradients, strict=True)
        ]
        if num_calls > 1:
            self._untouched = [None if g is None else g.detach().clone() for g in self._gradients]
        self._versions = [0 if g is None else g._version for g in self._gradients]

    def restore(self) -> None:
        """Before a call goes on: all parameters have theirs, as it was shared."""
        for i, (parameter, gradient) in enumerate(zip(self._parameters, self._gradients, strict=True)):
            parameter.grad = gradient
            if gradient is not None and gradient._version != self._versions[i]:
                untouched = self._untouched[i]
                assert untouched is not None
                gradient.copy_(untouched)
                self._versions[i] = gradient._version

    def forget(self) -> None:
        """Nothing is shared any more: after the optimizer's step, or where there will be none."""
        self._parameters, self._gradients, self._untouched = (), [], []
