"""A step at the speed of the library's sums: equal up to rounding, not bitwise, when the number of workers changes.

Each worker is one virtual node with its own part of the global batch, and calls train() once on torch's
DistributedDataParallel. Buffers come from rank 0. If a part exceeds the memory, its micro-batches must be summed before
the optimizer's step; such a job uses bitwise.py, with as many virtual nodes as workers.
"""

# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIncompatibleMethodOverride=false
# (torch.distributed documents its buckets and process groups, but neither exports nor types all of them)

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.nn.parallel import DistributedDataParallel

from elasticflow.services.executor.worker.data.random_seeds import SeedPhase, seed_generators, seed_of
from elasticflow.services.executor.worker.engine.additional_state import AdditionalSnapshot
from elasticflow.services.executor.worker.engine.gradient_digest import StepDigest
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch, number_of
from elasticflow.shared.training_interface import offering


class FastSteps:
    step_digest = StepDigest()  # sums may be of any order
    begun: AdditionalSnapshot | None = None  # scripts are trained bitwise

    def __init__(
        self,
        model: nn.Module,
        *,
        carried: CarriedGradients,
        members: GenerationMembers,
        device: torch.device,
        job_seed: int,
        find_unused_parameters: bool,
        cpu_throttle: CpuThrottle,
        stopwatch: Stopwatch,
    ) -> None:
        self._bare_model = model
        self._carried = carried
        self._members, self._group = members, members.group
        self._rank = members.rank
        self._weights = members.weights_by_rank
        self._job_seed = job_seed
        self._cpu_throttle = cpu_throttle
        self._buffers_before: list[torch.Tensor] = []
        self.computed = members.computed
        self.model = self._wrap(model, device, find_unused_parameters=find_unused_parameters)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _: stopwatch.lap())
            for parameter in [each for each in model.parameters() if each.requires_grad][:1]
        ]  # usually the last gradient of a backward pass; the wrapper waits for the other workers after it

    def _wrap(self, model: nn.Module, device: torch.device, *, find_unused_parameters: bool) -> nn.Module:
        """The model with rank 0's parameters; all-reduces average its gradients over the global batch."""
        if self._group is None:
            return model
        buffers = [name for name, _ in model.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, buffers)
        parallel = DistributedDataParallel(
            model,
            device_ids=None if device.type == "cpu" else [device],
            process_group=ReducerGroup(self._group),
            init_sync=False,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=True,  # the sums need no copy into the gradients, and no memory beside them
        )
        self._take_parameters_of_rank_0(model, self._group)
        # A thread stuck in torch's own sums cannot be abandoned, and a mean of means is wrong for uneven parts.
        parallel.register_comm_hook(self._group, self._weighted_sum)
        return parallel

    @staticmethod
    def _take_parameters_of_rank_0(model: nn.Module, group: Group) -> None:
        """Raises PeerLost before any parameter changes."""
        parameters = [parameter.detach() for parameter in model.parameters()]
        received = [parameter.clone() for parameter in parameters]
        group.broadcast_all(received, source=0)
        group.check_received()
        for parameter, value in zip(parameters, received, strict=True):
            parameter.copy_(value)

    def _weighted_sum(self, group: Group, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP hook: each worker's mean gradient is weighted by its part of the global batch."""
        self._cpu_throttle.sleep_off_excess()
        gradients = bucket.buffer().mul_(self._weights[self._rank])
        return group.all_reduce(gradients)

    def close(self) -> None:
        """Drop the wrapper of the model, and its hooks."""
        self.model = self._bare_model
        for hook in self._hooks:
            hook.remove()

    def run(self, iteration: int, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """The result of train(), called once."""
        (call,) = calls
        self._carried.begin_step()
        buffers = list(self._bare_model.buffers())
        self._buffers_before = [buffer.clone() for buffer in buffers]
        if self._group is not None and buffers:
            self._group.broadcast_all(buffers, source=0)
        (micro_batch,) = self.computed
        node = micro_batch.virtual_node
        seed_generators(seed_of(self._job_seed, SeedPhase.TRAIN, iteration=iteration, virtual_node=node))
        with offering(self):
            return [call()]

    def mean(self, value: torch.Tensor | float) -> float:
        """Do what `elasticflow.mean` does, within train()."""
        return self._members.means([[float(number_of(value))]])[0]

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Refuse `elasticflow.gather`, within train()."""
        del tensor
        raise TrainingFailed('elasticflow.gather() needs reproducible = "bitwise", which sums its gradients in order')

    def roll_back(self) -> None:
        """Undo a step that failed before the optimizer's step."""
        with torch.no_grad():
            for buffer, before in zip(self._bare_model.buffers(), self._buffers_before, strict=True):
                buffer.copy_(before)
        self._carried.roll_back()

    def note_loaded(self) -> None:
        """A step begins with the model's buffers."""

    def changed_buffers(self) -> list[list[float]]:
        """No buffers are combined."""
        return [[]]

    def combine_buffers(self, changed: Sequence[int]) -> None:
        assert not changed


class ReducerGroup(dist.ProcessGroup):
    """Runs the transfers of torch's reducer over our own group, so that a stuck thread can be abandoned.

    Gradients go through a hook. The reducer also exchanges its buckets, which it rebuilds after the first step, and,
    with find_unused_parameters, which parameters each step used.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self._group = group

    def broadcast(self, tensors: list[torch.Tensor], opts: dist.BroadcastOptions) -> dist.Work:
        """Complete on return, so that no caller continues with a partial tensor. Raises PeerLost, ThreadAbandoned."""
        (tensor,) = tensors
        self._group.broadcast_all([tensor], source=opts.rootRank)
        self._group.check_received()
        done = torch.futures.Future[torch.Tensor]()
        done.set_result(tensor)
        return _create_work_from_future(done)

    def allreduce(self, tensors: list[torch.Tensor], opts: dist.AllreduceOptions) -> dist.Work:
        """The group's own sum, which ends when the group is closed."""
        (tensor,) = tensors
        return _create_work_from_future(self._group.all_reduce(tensor))
