"""A step that gives the same bits at any number of workers: one call of the user's train() for each micro-batch.

A micro-batch is a virtual node, or a part of one that exceeds the memory. The scheduler synchronizes the calls. After
each backward pass its gradients are added to the summation tree, and the next call runs. After the last one the workers
finish the sum, and all calls continue with the gradient of the global batch, as on one device. The optimizer's step
runs once, when all calls have requested it, all with the same gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from itertools import repeat
from typing import Any

import torch
from torch import nn

from elasticflow.services.executor.worker.process.compiled_models import CUDA_GRAPHS_REFUSED, uses_cuda_graphs
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch
from elasticflow.services.executor.worker.process.device_numbers import Number
from elasticflow.services.executor.worker.steps.additional_state import AdditionalState, Snapshot
from elasticflow.services.executor.worker.steps.backward_pass import (
    dense_gradient,
    each_written_to,
    weighted_roots,
)
from elasticflow.services.executor.worker.steps.carried_gradients import CarriedGradients, parameters_of
from elasticflow.services.executor.worker.steps.gradient_digest import StepDigest, gradient_digest
from elasticflow.services.executor.worker.steps.gradients_and_buffers import Buffers, SharedGradients
from elasticflow.services.executor.worker.steps.parameter_changes import ParameterChanges
from elasticflow.services.executor.worker.steps.random_seeds import Phase, seed_generators, seed_of
from elasticflow.services.executor.worker.steps.shared_sum import Tensors
from elasticflow.services.executor.worker.steps.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed
from elasticflow.services.executor.worker.steps.tree_reduce import TensorSum
from elasticflow.services.executor.worker.steps.virtual_node_scheduler import MakeScheduler
from elasticflow.services.executor.worker.steps.virtual_nodes import MicroBatch

_BACKWARD = "backward()"
_STEP = "optimizer.step()"
SYNC_POINTS = (_BACKWARD, _STEP)


class BitwiseSteps:
    """Replaces torch's backward() and the optimizer's step() in this process, until `close`."""

    keeps_changes = True  # of parameters, by the last call behind optimizer.step()

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        members: GenerationMembers,
        carried: CarriedGradients,
        job_seed: int,
        cpu_throttle: CpuThrottle,
        stopwatch: Stopwatch,
        make_scheduler: MakeScheduler,
        computed: Sequence[MicroBatch] | None = None,
        additional: AdditionalState | None = None,
    ) -> None:
        """carried: gradients from the steps before. computed: the micro-batches of which this process calls train(), if
        not those of the member. additional: state that the calls change, too."""
        self.model = model
        self._job_seed = job_seed
        self._cpu_throttle = cpu_throttle
        self._stopwatch = stopwatch
        self._all_parameters = parameters_of(model, optimizer)
        self._trained: list[torch.Tensor] = []  # those of them that are not frozen
        self._iteration = 0
        self._num_synchronizations = 0
        self._shared_seed = 0  # of all calls, since the last synchronization
        self._is_hooked = False  # the user's hooks must see the gradient of one virtual node
        self._in_backward = False
        self._gradients_before: Tensors = []  # that train() has not set to zero
        self._shared = SharedGradients()
        self._carried = carried
        self._changes = ParameterChanges(model, optimizer)
        self._has_gradient = False  # a backward pass of this step has been summed
        self._digests: list[Number | None] = []  # of the calls, before optimizer.step(); None: the shared gradient
        self.step_digest = StepDigest()
        self._additional = additional
        self._before_calls: Snapshot | None = None  # since the last synchronization; None until the first call resumes
        self._optimizer = optimizer
        self._backward_of_torch = torch.autograd.backward
        self._step_of_optimizer = optimizer.step
        torch.autograd.backward = self._backward  # Tensor.backward calls it, too
        optimizer.step = self._synchronized(optimizer.step)
        self.computed = members.computed if computed is None else tuple(computed)
        self._group = members.group
        self._gradients = TensorSum(members.virtual_nodes, members.group)
        self._buffers = Buffers(self.model, self.computed)
        self._buffer_sum = TensorSum(members.virtual_nodes, members.group)
        self._scheduler = make_scheduler(len(self.computed), before_resume=self._before_resume, at_point=self._at_point)

    def close(self) -> None:
        """Between two steps: restore torch's functions."""
        self._scheduler.close()
        del self._scheduler  # it refers back: buffers and group would wait for the garbage collector
        torch.autograd.backward = self._backward_of_torch
        self._optimizer.step = self._step_of_optimizer

    def run(self, iteration: int, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Results of train(), one for each micro-batch."""
        self._iteration = iteration
        self._num_synchronizations = 0
        self._before_calls = None
        self._has_gradient, self.step_digest = False, StepDigest()
        self._buffers.begin_step()
        self._carried.begin_step()
        self._changes.begin_step(iteration)
        results = self._scheduler.run([partial(self._watched, call) for call in calls])
        self._buffers.activate(None)
        return results

    def roll_back(self) -> None:
        """Undo a step that failed before the optimizer's step."""
        self._scheduler.abandon()
        self._buffers.roll_back()
        self._shared.clear()
        self._gradients_before, self._digests = [], []
        self._carried.roll_back()

    def end_watching(self) -> None:
        """In the thread of a script, before it waits for its next batch."""
        self._changes.end_watching()

    def changed_buffers(self) -> list[list[float]]:
        """For each micro-batch computed here and each buffer of the model: 1 if it was changed, else 0."""
        return self._buffers.changes()

    def combine_buffers(self, changed: Sequence[int]) -> None:
        self._buffers.combine(changed, self._buffer_sum)

    # --- between the calls ---

    def _before_resume(self, index: int) -> None:
        self._buffers.activate(index)
        if self._additional is not None:
            if self._before_calls is None:
                self._before_calls = self._additional.snapshot()
            else:
                self._additional.restore(self._before_calls)
        if self._num_synchronizations == 0:
            if self._group is not None:
                self._group.check_open()  # after a reported loss the rest of the step is useless
            mine = self.computed[index]
            part = {"virtual_node": mine.virtual_node, "micro_batch": mine.index}
            seed_generators(seed_of(self._job_seed, Phase.TRAIN, iteration=self._iteration, **part))
        else:  # from here on all calls do the same, to the same gradients
            self._shared.restore()
            seed_generators(self._shared_seed)

    def _at_point(self, point: str) -> None:
        phase = Phase.AFTER_SYNCHRONIZATION + self._num_synchronizations
        self._shared_seed = seed_of(self._job_seed, phase, iteration=self._iteration)
        self._num_synchronizations += 1
        self._before_calls = None
        if self._num_synchronizations == 1:
            self._stopwatch.lap()
        if point == _BACKWARD:
            self._cpu_throttle.sleep_off_excess()
            self._share(self._summed_gradients())
            self._has_gradient = True
        else:
            self.step_digest += self._digest_of_calls()
            self._shared.clear()
            self._finish_step()
            self._changes.note_step()

    def _digest_of_calls(self) -> StepDigest:
        """Before the optimizer's step. Nothing is computed for a worker that is alone, unless calls have changed the
        gradient: all calls have the same."""
        digests, self._digests = self._digests, []
        if all(digest is None for digest in digests) and self._group is None:
            return StepDigest()
        shared = self._digest_of(self._shared.values()) if None in digests else 0.0
        first, *others = [shared if digest is None else digest for digest in digests]
        return StepDigest.of(first, others)

    def _summed_gradients(self) -> Tensors:
        """After the backward pass of all calls: the gradient of the global batch."""
        return self._gradients.finish(self._trained)

    def _share(self, gradients: Tensors) -> None:
        num_calls = self._scheduler.num_resumed
        self._shared.share(self._trained, gradients, before=self._gradients_before, num_calls=num_calls)
        self._gradients_before = []

    def _finish_step(self) -> None:
        """All calls have requested the optimizer's step."""
        self._combine_changed_buffers()
        self._step_of_optimizer()

    def _combine_changed_buffers(self) -> None:
        """Before the first permanent change: from here on only buffers that train() changes later need the peers."""
        self._buffers.activate(None)
        changed = torch.tensor(self._buffers.changes(), dtype=torch.uint8).amax(0)
        if changed.numel() and self._group is not None:
            changed = torch.stack(self._group.all_gather(changed)).amax(0)
        self.combine_buffers(changed.nonzero().flatten().tolist())

    # --- within a call ---

    def _backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        running = self._scheduler.running
        if running is None or self._in_backward:  # e.g. in evaluate, or within a backward pass
            self._backward_of_torch(tensors, grad_tensors, *args, **kwargs)
            return
        if running == 0:
            self._trained = [parameter for parameter in self._all_parameters if parameter.requires_grad]
            self._is_hooked = any(parameter._post_accumulate_grad_hooks for parameter in self._trained)
        if uses_cuda_graphs():
            raise TrainingFailed(CUDA_GRAPHS_REFUSED)
        before = [parameter.grad for parameter in self._trained]
        if running == 0:  # copies: this pass may overwrite the memory of the last sum
            self._gradients_before = [None if gradient is None else gradient.clone() for gradient in before]
            if self._num_synchronizations == 0:
                self._carried.note_backward(self._trained, before)
        self._changes.end_watching()
        self._in_backward = True
        try:
            self._add_gradients(self.computed[running], tensors, grad_tensors, *args, **kwargs)
        finally:
            self._in_backward = False
            for parameter, gradient in zip(self._trained, before, strict=True):
                parameter.grad = gradient
        self._changes.end_segment()
        self._scheduler.synchronize(_BACKWARD)
        self._changes.forbid()

    def _add_gradients(
        self, micro_batch: MicroBatch, tensors: Any, grad_tensors: Any, *args: Any, **kwargs: Any
    ) -> None:
        """torch's backward pass, and the sum of its gradients with those of the calls before."""
        partial_sum = None if self._is_hooked else self._gradients.take_partial_sum(micro_batch)
        for parameter, gradient in zip(self._trained, partial_sum or repeat(None), strict=False):
            parameter.grad = gradient  # autograd adds to it, while the addend is in the cache
        weighted = weighted_roots(tensors, grad_tensors, micro_batch.weight)
        with torch.no_grad():
            shared_sum = self._gradients.begin_last(micro_batch, self._trained)
        with each_written_to(shared_sum, () if self._is_hooked else self._trained):
            self._backward_of_torch(tensors, weighted, *args, **kwargs)
        with torch.no_grad():
            self._gradients.push(micro_batch, [dense_gradient(p) for p in self._trained])

    def _synchronized(self, step: Callable[..., Any]) -> Any:
        @wraps(step)  # torch's schedules look for their mark on it
        def synchronized_step(closure: Any = None) -> None:
            self._step(closure)

        return synchronized_step

    def _step(self, closure: Any = None) -> None:
        if closure is not None:
            raise TrainingFailed(
                "optimizer.step(closure) runs more than one backward pass, which the bitwise mode does not support: "
                'set reproducible = "fast"'
            )
        if (running := self._scheduler.running) is None:
            self._step_of_optimizer()
            return
        is_last = running == len(self.computed) - 1
        if self._scheduler.has_effect:
            self._note_gradients()
        self._changes.end_segment()
        self._scheduler.synchronize(_STEP)
        self._changes.allow(undone=not (is_last and self.keeps_changes))

    def _note_gradients(self) -> None:
        """Those with which this call requests the optimizer's step."""
        if not self._has_gradient:
            raise TrainingFailed(
                "train() called optimizer.step() without backward(): gradients that it assigns, for example from "
                "torch.autograd.grad, are those of one part of the batch. Call loss.backward(), which sums them over "
                'all parts, or set reproducible = "fast"'
            )
        self._digests.append(None if self._shared.is_unchanged() else self._digest_of({}))

    def _digest_of(self, shared: Mapping[int, torch.Tensor | None]) -> Number:
        """Of the gradients of all parameters of the optimizer. shared: in place of what these parameters have."""
        stepped = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        gradients = [shared.get(id(parameter), parameter.grad) for parameter in stepped]
        return gradient_digest(gradients, self._iteration)

    def _watched(self, call: Callable[[], Any]) -> Any:
        self._changes.forbid()
        try:
            value = call()
        except BaseException:
            self._changes.end_watching()
            raise
        self._changes.end_segment()
        return value
