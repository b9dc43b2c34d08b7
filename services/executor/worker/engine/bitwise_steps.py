"""A step that gives the same bits at any number of workers: one call of the user's train() for each micro-batch.

A micro-batch is a virtual node, or a part of one that exceeds the memory. The scheduler synchronizes the calls. After
each backward pass its gradients are added to the summation tree, and the next call runs. After the last one the workers
finish the sum, and all calls continue with the gradient of the global batch, as on one device. The optimizer's step
runs once, when all calls have requested it, all with the same gradient.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from itertools import repeat
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elasticflow.services.executor.worker.data.random_seeds import SeedPhase, seed_generators, seed_of
from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch
from elasticflow.services.executor.worker.engine.additional_state import (
    AdditionalSnapshot,
    AdditionalState,
    further_optimizers,
)
from elasticflow.services.executor.worker.engine.gradient_digest import StepDigest, gradient_digest
from elasticflow.services.executor.worker.engine.gradients_and_buffers import (
    Buffers,
    CarriedGradients,
    SharedGradients,
    parameters_of,
)
from elasticflow.services.executor.worker.engine.local_shards import (
    all_local,
    gradients_of,
    local_of,
    locals_there,
)
from elasticflow.services.executor.worker.engine.plain_state import Pass
from elasticflow.services.executor.worker.engine.plain_values import Plain
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.tree_reduce import SharedSum, Tensors, TensorSum
from elasticflow.services.executor.worker.engine.undeclared_state import ParameterChanges
from elasticflow.services.executor.worker.engine.user_code_checks import require_of_one_call
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import MakeScheduler
from elasticflow.services.executor.worker.engine.whole_batch import WholeBatchValues
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.compiled_models import CUDA_GRAPHS_REFUSED, uses_cuda_graphs
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Number, Stopwatch
from elasticflow.shared.training_interface import offering

# --- backward pass -------------------------------------------------------------------------------------
# A backward pass of one micro-batch within the sum over all: how it begins, and what becomes of its gradients.


@contextmanager
def each_written_to(shared_sum: SharedSum | None, parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Write each gradient of a backward pass to the sum once it is there, and send what is complete."""

    def write(position: int, parameter: torch.Tensor) -> None:
        if shared_sum is not None and parameter.grad is not None and parameter.grad.layout is torch.strided:
            with torch.no_grad():
                shared_sum.write(position, local_of(parameter.grad))
            shared_sum.send_written()

    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(write, position))
        for position, parameter in enumerate(parameters if shared_sum is not None else ())
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def dense_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    if parameter.grad is None:
        return None
    if parameter.grad.layout is not torch.strided:
        raise TrainingFailed(
            "the model has sparse gradients, which the bitwise mode does not support: make them dense, or set "
            'reproducible = "fast"'
        )
    return parameter.grad.detach()


def weighted_roots(tensors: Any, grad_tensors: Any, weight: float) -> Any:
    """Initial gradients of the backward pass, so that a mean over a part is weighted by its size."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    given = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors or [None] * len(roots))
    return [
        torch.full_like(root, weight) if grad is None and root.numel() == 1 else grad if grad is None else grad * weight
        for root, grad in zip(roots, given, strict=True)
    ]


def first_root(tensors: Any) -> torch.Tensor:
    """The loss, of what `torch.autograd.backward` gets."""
    return tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors))


def _loss_of(tensors: Any) -> torch.Tensor:
    root = first_root(tensors)
    if root.numel() != 1:
        return torch.full((), math.nan, device=root.device)
    return root.detach().to(torch.promote_types(root.dtype, torch.float32), copy=True).reshape(())


# --- bitwise steps -------------------------------------------------------------------------------------

_BACKWARD = "backward()"
_STEP = "optimizer.step()"
SYNC_POINTS = (_BACKWARD, _STEP)
_NOT_IN_GANGS = (
    "gives no values of the whole batch where several GPUs hold a replica: return metrics from train(), or use "
    "gpus_per_replica = 1"
)


class BitwiseSteps:
    """Replaces torch's backward() and the optimizer's step() in this process, until `close`."""

    keeps_changes = True  # of parameters, by the last call behind optimizer.step()
    _whole_batch_refusal = ""  # why calls here get no values of the whole batch

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
        self._further = {} if additional is None else further_optimizers(additional)
        self._all_parameters = parameters_of(model, optimizer, *self._further.values())
        self._trained: list[torch.Tensor] = []  # those of them that are not frozen
        self._iteration = 0
        self._num_synchronizations = 0
        self._is_common = False  # all calls do the same, to the same gradients
        self._shared_seed = 0  # of all calls, since the last synchronization
        self._is_hooked = False  # the user's hooks must see the gradient of one virtual node
        self._in_backward = False
        self._gradients_before: Tensors = []  # that train() has not set to zero
        self._shared = SharedGradients()
        self._carried = carried
        self._changes = ParameterChanges(model, optimizer)
        self._has_gradient = False  # a backward pass of this step has been summed
        self.note_loss: Callable[[torch.Tensor], None] | None = None  # of the global batch, before the optimizer's step
        self._losses: list[torch.Tensor] = []  # of the calls
        self._digests: list[Number | None] = []  # of the calls, before optimizer.step(); None: the shared gradient
        self.step_digest = StepDigest()
        self._additional = additional
        self._before_calls: AdditionalSnapshot | None = (
            None  # since the last synchronization; None until the first call resumes
        )
        self._change_of_first: Mapping[str, str] | None = None  # since then, by the first call
        self.begun: AdditionalSnapshot | None = None  # when a script's loop began this step
        self._begun_buffers: Mapping[int, torch.Tensor] = {}  # that it had written before
        self._optimizer = optimizer
        self._backward_of_torch = torch.autograd.backward
        self._step_of_optimizer = optimizer.step
        torch.autograd.backward = self._backward  # Tensor.backward calls it, too
        optimizer.step = self._synchronized(optimizer, _STEP)
        self._steps_of_further = {point: each.step for point, each in self._further.items()}
        for point, each in self._further.items():
            each.step = self._synchronized(each, point)
        self._unknown = register_optimizer_step_pre_hook(self._check_known)
        self.computed = members.computed if computed is None else tuple(computed)
        self._members, self._group, self._gang = members, members.group, members.gang
        self._gradients = TensorSum(members.virtual_nodes, members.group)
        self._buffers = Buffers(self.model, self.computed)
        self._buffer_sum = TensorSum(members.virtual_nodes, members.group)
        self._loss_sum = TensorSum(members.virtual_nodes, members.group)
        self._scheduler = make_scheduler(len(self.computed), before_resume=self._before_resume, at_point=self._at_point)
        self._whole_batch = WholeBatchValues(
            self._scheduler,
            members if computed is None else None,
            self.computed,
            self._pause,
            self._whole_batch_refusal or (_NOT_IN_GANGS if members.gang is not None else ""),
        )

    def close(self) -> None:
        """Restore torch's functions, between two steps."""
        self._scheduler.close()
        del self._scheduler, self._whole_batch  # they refer back: buffers and group would wait for the collector
        torch.autograd.backward = self._backward_of_torch
        self._optimizer.step = self._step_of_optimizer
        for point, each in self._further.items():
            each.step = self._steps_of_further[point]
        self._unknown.remove()

    def run(self, iteration: int, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Results of train(), one for each micro-batch."""
        if iteration != self._iteration:
            self.begun = None
        self._iteration = iteration
        self._num_synchronizations = 0
        self._is_common = False
        self._before_calls = self._change_of_first = None
        self._has_gradient, self.step_digest = False, StepDigest()
        self._losses = []
        self._buffers.begin_step()
        self._whole_batch.forget()
        self._carried.begin_step()
        self._changes.begin_step(iteration)
        with offering(self._whole_batch):
            results = self._scheduler.run([partial(self._watched, call) for call in calls])
        self._require_same_changes()
        self._whole_batch.forget()
        self._buffers.activate(None)
        return results

    def begin_pass(self, kind: Pass) -> None:
        """A pass of a script's loop begins, behind what the script does between two steps, such as at the top of an
        epoch. That holds for all passes of the step, also when it is repeated. A process that begins within an epoch
        has the state of its peers, who have done it.
        """
        assert self._additional is not None, "a script has settings"
        if kind != "repeated":
            self._changes.require_unchanged_before_batch()
        if kind == "new":
            self._begun_buffers = self._buffers.take_over()
            self.begun = self._before_calls = self._additional.snapshot()
        elif kind == "joined":
            assert self._before_calls is not None, "the call has been resumed"
            self._buffers.undo()
            self._additional.restore(self._before_calls)
            self.begun = self._before_calls
        elif self._scheduler.running == 0 and self.begun is not None:
            self._buffers.put(self._begun_buffers)
            self._additional.restore(self.begun)
            self._before_calls = self.begun

    def roll_back(self) -> None:
        """Undo a step that failed before the optimizer's step."""
        self._scheduler.abandon()
        self._buffers.roll_back()
        self._whole_batch.forget()
        self._shared.clear()
        self._gradients_before, self._digests = [], []
        self._carried.roll_back()

    def note_loaded(self) -> None:
        """Note between two steps that another state has been loaded into the model."""
        self._buffers.note_loaded()

    def end_watching(self) -> None:
        """End the watch over changes, in the thread of a script, before it waits for its next batch."""
        self._changes.end_watching()

    def changed_buffers(self) -> list[list[float]]:
        """A row for each micro-batch computed here: for each buffer of the model, 1 if it was changed, else 0."""
        changes = self._buffers.changes()
        if self._gang is not None and any(map(any, changes)):
            changed = next(index for index, marks in enumerate(zip(*changes, strict=True)) if any(marks))
            raise TrainingFailed(
                f"gpus_per_replica: train() changes the buffer {self._buffers.name(changed)}, of which each GPU of a "
                "replica would see its own part of the batch: use a layer without statistics of batches, such as "
                "LayerNorm or GroupNorm, or gpus_per_replica = 1"
            )
        return changes

    def combine_buffers(self, changed: Sequence[int]) -> None:
        self._buffers.combine(changed, self._buffer_sum)

    # --- between the calls ---

    def _before_resume(self, index: int) -> None:
        self._buffers.activate(index)
        if self._additional is not None:
            if self._before_calls is None:
                self._before_calls = self._additional.snapshot()
            else:
                self._additional.restore(self._before_calls, self._require_same_changes())
        if self._is_common:
            self._shared.restore()
            seed_generators(self._shared_seed)
        else:
            if self._group is not None and self._gang is None:  # a gang learns of a loss together
                self._group.check_open()  # after a reported loss the rest of the step is useless
            mine, before = self.computed[index], self._num_synchronizations
            part = {"virtual_node": mine.virtual_node, "micro_batch": mine.number}
            phase = SeedPhase.AFTER_SYNCHRONIZATION + before - 1 if before else SeedPhase.TRAIN
            seed_generators(seed_of(self._job_seed, phase, iteration=self._iteration, **part))

    def _at_point(self, point: str) -> None:
        self._require_same_changes()
        phase = SeedPhase.AFTER_SYNCHRONIZATION + self._num_synchronizations
        self._shared_seed = seed_of(self._job_seed, phase, iteration=self._iteration)
        self._num_synchronizations += 1
        self._before_calls = self._change_of_first = None
        if self._num_synchronizations == 1:
            self._stopwatch.lap()
        if self._whole_batch.at_point(point):
            self._shared.keep_changes(num_calls=self._scheduler.num_resumed)
            return
        self._is_common = True
        if point == _BACKWARD:
            self._cpu_throttle.sleep_off_excess()
            self._share(self._summed_gradients())
            self._has_gradient = True
            if self.note_loss is not None:
                self.note_loss(self._summed_loss())
        else:
            is_first = point == _STEP
            self._share_on(self._optimizer if is_first else self._further[point])
            self._finish_step(self._step_of_optimizer if is_first else self._steps_of_further[point])
            self._changes.note_step()

    def _share_on(self, optimizer: torch.optim.Optimizer) -> None:
        """Further optimizers may step with the same gradient."""
        self.step_digest += self._digest_of_calls(optimizer)
        if self._further:
            self._shared.keep_changes(num_calls=self._scheduler.num_resumed)
        else:
            self._shared.clear()

    def _require_same_changes(self) -> Mapping[str, Plain] | None:
        """Check after each part of a call that it has changed the additional state as the first call has. Returns the
        plain state, if it was read."""
        if self._additional is None or self._before_calls is None or len(self.computed) == 1:
            return None
        if self._scheduler.num_resumed < len(self.computed):
            return None  # a script changes it in its last pass only
        now = self._additional.note_call()
        mine = self._additional.comparable()
        first = self._change_of_first = self._change_of_first or mine
        if differing := [name for name in mine if mine[name] != first[name]]:
            raise TrainingFailed(
                f"train() changed {', '.join(differing)} in another way for one part of the global batch than for "
                f"another, in iteration {self._iteration}: let it depend only on what all parts share, for example "
                "schedule.step(elasticflow.mean(loss)) of a ReduceLROnPlateau"
            )
        return now

    def _digest_of_calls(self, optimizer: torch.optim.Optimizer) -> StepDigest:
        """The digest of all calls, before the optimizer's step. Nothing is computed for a worker that is alone, unless
        calls have changed the gradient: all calls have the same."""
        digests, self._digests = self._digests, []
        if all(digest is None for digest in digests) and self._group is None:
            return StepDigest()
        shared = self._digest_of(optimizer, self._shared.values()) if None in digests else 0.0
        first, *others = [shared if digest is None else digest for digest in digests]
        return StepDigest.of(first, others)

    def _summed_gradients(self) -> Tensors:
        """The gradient of the global batch, after the backward pass of all calls."""
        with self._members.together():
            rows = self._gradients.finish(all_local(self._trained))
            if self._gang is not None:
                self._gradients.check_received()  # all workers of a gang take the optimizer's step, or none
        return gradients_of(self._trained, rows)

    def _summed_loss(self) -> torch.Tensor:
        """A collective: the mean over the global batch, with the same bits on any number of workers."""
        losses, self._losses = self._losses, []
        like = [torch.zeros_like(losses[0])]
        rows = ([loss * part.weight] for part, loss in zip(self.computed, losses, strict=True))
        (mean,) = self._loss_sum.of(self.computed, rows, like)
        assert mean is not None, "each part has a loss"
        return mean.clone()

    def _share(self, gradients: Tensors) -> None:
        num_calls = self._scheduler.num_resumed
        self._shared.share(self._trained, gradients, before=self._gradients_before, num_calls=num_calls)
        self._gradients_before = []

    def _finish_step(self, step: Callable[[], Any]) -> None:
        """All calls have requested this step of an optimizer."""
        self._combine_changed_buffers()
        step()

    def _combine_changed_buffers(self) -> None:
        """Combine changed buffers before the first permanent change: from here on only buffers that train() changes
        later need the peers."""
        self._buffers.activate(None)
        changed = torch.tensor(self.changed_buffers(), dtype=torch.uint8).amax(0)
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
            if self._gang is not None:
                self._gang.require_no_hooks(self.model)
        if uses_cuda_graphs():
            raise TrainingFailed(CUDA_GRAPHS_REFUSED)
        if self.note_loss is not None:
            self._losses.append(_loss_of(tensors))
        weights = weighted_roots(tensors, grad_tensors, self.computed[running].weight)
        tensors, weights = self._whole_batch.roots_behind(
            running, tensors, weights, self._trained, creates_graph=bool(kwargs.get("create_graph"))
        )
        before = [parameter.grad for parameter in self._trained]
        if running == 0:  # copies: this pass may overwrite the memory of the last sum
            self._gradients_before = [None if gradient is None else gradient.clone() for gradient in before]
            if not self._is_common:
                self._carried.note_backward(self._trained, before)
        self._changes.end_watching()
        self._in_backward = True
        try:
            self._add_gradients(self.computed[running], tensors, weights, *args, **kwargs)
            self._whole_batch.check_not_nested(running)
        finally:
            self._in_backward = False
            for parameter, gradient in zip(self._trained, before, strict=True):
                parameter.grad = gradient
        self._changes.end_segment()
        self._scheduler.synchronize(_BACKWARD)
        self._changes.forbid()

    def _add_gradients(self, micro_batch: MicroBatch, tensors: Any, weights: Any, *args: Any, **kwargs: Any) -> None:
        """torch's backward pass, and the sum of its gradients with those of the calls before."""
        partial_sum = None if self._is_hooked else self._gradients.take_partial_sum(micro_batch)
        partial_gradients = repeat(None) if partial_sum is None else gradients_of(self._trained, partial_sum)
        for parameter, gradient in zip(self._trained, partial_gradients, strict=False):
            parameter.grad = gradient  # autograd adds to it, while the addend is in the cache
        with torch.no_grad():
            shared_sum = self._gradients.begin_last(micro_batch, all_local(self._trained))
        with each_written_to(shared_sum, () if self._is_hooked else self._trained):
            self._backward_of_torch(tensors, weights, *args, **kwargs)
        with torch.no_grad():
            self._gradients.push(micro_batch, locals_there([dense_gradient(p) for p in self._trained]))

    def _synchronized(self, optimizer: torch.optim.Optimizer, point: str) -> Any:
        step = optimizer.step

        @wraps(step)  # torch's schedules look for their mark on it
        def synchronized_step(closure: Any = None) -> Any:
            if (running := self._scheduler.running) is None:
                return step(closure) if closure is not None else step()
            loss = None if closure is None else self._loss_of(closure, optimizer)
            is_last = running == len(self.computed) - 1
            if self._scheduler.has_effect:
                self._note_gradients(optimizer)
            self._changes.end_segment()
            self._scheduler.synchronize(point)
            self._changes.allow(undone=not (is_last and self.keeps_changes))
            return loss

        return synchronized_step

    def _loss_of(self, closure: Callable[[], Any], optimizer: torch.optim.Optimizer) -> Any:
        """The loss of a closure, computed as the optimizers of torch begin their step."""
        if not type(optimizer).__module__.startswith("torch.optim."):
            raise TrainingFailed(
                f"step(closure) of {type(optimizer).__name__} may compute gradients more than once in a step, which "
                "the bitwise mode does not support: compute them before optimizer.step() without an argument, or set "
                'reproducible = "fast"'
            )
        with torch.enable_grad():
            return closure()

    def _check_known(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Check an optimizer before its step; runs for any optimizer in this process."""
        if self._scheduler.running is not None:
            if optimizer is not self._optimizer and all(optimizer is not each for each in self._further.values()):
                self._scheduler.note_other_optimizer(type(optimizer).__name__)
            require_of_one_call(
                optimizer,
                f"train() steps {type(optimizer).__name__}, which init_optimizer() did not return, once for every part "
                "of a batch: let stateful() return it, so that it steps once, and its state is kept",
            )

    def _note_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the gradients with which this call requests the optimizer's step."""
        if not self._has_gradient:
            raise TrainingFailed(
                "train() called optimizer.step() without backward(): gradients that it assigns, for example from "
                "torch.autograd.grad, are those of one part of the batch. Call loss.backward(), which sums them over "
                'all parts, or set reproducible = "fast"'
            )
        self._digests.append(None if self._shared.is_unchanged() else self._digest_of(optimizer, {}))

    def _digest_of(self, optimizer: torch.optim.Optimizer, shared: Mapping[int, torch.Tensor | None]) -> Number:
        """The digest of the gradients of all parameters of the optimizer. shared: in place of what these parameters
        have."""
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [shared.get(id(parameter), parameter.grad) for parameter in stepped]
        return gradient_digest([local_of(each) for each in gradients if each is not None], self._iteration)

    def _watched(self, call: Callable[[], Any]) -> Any:
        self._changes.forbid()
        try:
            value = call()
        except BaseException:
            self._changes.end_watching()
            raise
        self._changes.end_segment()
        return value

    def _pause(self, point: str) -> None:
        """Pause at a point that changes nothing: what the call may change of the parameters stays the same."""
        may_change = self._changes.may_change
        self._changes.end_segment()
        is_last = self._scheduler.running == len(self.computed) - 1
        self._scheduler.synchronize(point)
        if may_change:
            self._changes.allow(undone=not (is_last and self.keeps_changes))
        else:
            self._changes.forbid()
