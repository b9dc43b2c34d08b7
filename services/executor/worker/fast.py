"""A step that sums as fast as the library can: equal to rounding, not to the bit, when the number of workers changes.

Each worker is one virtual node with a part of the global batch of its own, and calls train() once, on PyTorch's
DistributedDataParallel. Buffers are rank 0's. Where a part is too big for the memory, its micro-batches have to meet
before the optimizer steps: such a job goes the way of bitwise.py, with as many virtual nodes as workers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from services.executor.worker.loading import seed_generators
from services.executor.worker.membership import Membership
from services.executor.worker.stopwatch import Stopwatch
from services.executor.worker.virtual_nodes import Phase, seed_of


class FastSteps:
    def __init__(
        self,
        model: nn.Module,
        *,
        members: Membership,
        device: torch.device,
        job_seed: int,
        find_unused_parameters: bool,
        stopwatch: Stopwatch,
    ) -> None:
        self._bare = model
        self._job_seed = job_seed
        self._buffers_before: list[torch.Tensor] = []
        self.model = members.wrap(model, device, find_unused_parameters=find_unused_parameters)
        self._members = members
        self.computed = members.computed
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _: stopwatch.lap())
            for parameter in [each for each in model.parameters() if each.requires_grad][:1]
        ]  # its gradient is the last of a backward pass, mostly; after it the wrapper waits for the others

    def close(self) -> None:
        """The wrapper of the model goes, and its hooks with it."""
        self.model = self._bare
        for hook in self._hooks:
            hook.remove()

    def run(self, iteration: int, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What train() returns, called once."""
        (call,) = calls
        self._buffers_before = [buffer.clone() for buffer in self._bare.buffers()]
        self._members.share_buffers(self._bare)
        (whole,) = self.computed
        who = whole.virtual_node
        seed_generators(seed_of(self._job_seed, Phase.TRAIN, iteration=iteration, virtual_node=who))
        return [call()]

    def take_back(self) -> None:
        """A step that has failed before the optimizer's: nothing of it stays."""
        with torch.no_grad():
            for buffer, before in zip(self._bare.buffers(), self._buffers_before, strict=True):
                buffer.copy_(before)

    def changed_buffers(self) -> list[list[float]]:
        """None that need be combined."""
        return [[]]

    def combine_buffers(self, changed: Sequence[int]) -> None:
        assert not changed
