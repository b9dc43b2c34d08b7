"""What the calls of train() in one bitwise step share and what they do not: gradients and the model's buffers.

Buffers are for example the statistics of a BatchNorm. Every micro-batch starts a step with the same buffers. Changed
floating-point buffers are averaged, weighted by samples; other changed buffers come from the first micro-batch of
virtual node 0. They are combined at the optimizer's step and at the end of the step. Unchanged buffers keep their bits.
"""

# pyright: reportPrivateImportUsage=false
# (torch uses its operations on lists everywhere, but does not export them by the letter)

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch
from elasticflow.services.executor.worker.engine.local_shards import all_local, may_have_changed
from elasticflow.services.executor.worker.engine.queues_in_buffers import NUM_STEPS, may_be_queue, require_no_queue
from elasticflow.services.executor.worker.engine.tree_reduce import Tensors, TensorSum

# --- layer statistics ----------------------------------------------------------------------------------
# Which statistics of normalization layers a step has changed: torch's kernels write them without counting a version.
#
# Before the optimizer's step the device finds it, and takes the result with the sum of the statistics. So no host
# waits.

_COUNTER = "num_batches_tracked"
_COUNTING = (_BatchNorm.forward, nn.SyncBatchNorm.forward)

Changed = dict[int, torch.Tensor]  # buffers that a micro-batch has, or may have, changed


class LayerStatistics:
    """The statistics of layers among a model's buffers. owners: layer and name of each buffer. common: values at the
    beginning of a step."""

    def __init__(self, owners: Sequence[tuple[nn.Module, str]], common: Sequence[torch.Tensor]) -> None:
        self._common = common
        positions = {(module, name): i for i, (module, name) in enumerate(owners)}
        self._counters = {  # of a layer's passes in training, by statistic; None: the layer counts none
            i: positions.get((module, _COUNTER)) if type(module).forward in _COUNTING else None
            for i, (module, _) in enumerate(owners)
            if isinstance(module, _NormBase) and common[i].is_floating_point() and common[i].numel()
        }
        self._flags: dict[tuple[int, ...], torch.Tensor] = {}  # by statistics
        self._sizes: dict[tuple[int, ...], torch.Tensor] = {}  # elements of each

    def suspected(self, written: Collection[int], *, after_optimizer: bool) -> set[int]:
        """The statistics that may differ, given which buffers were written. After the optimizer's step a comparison
        would keep the device waiting for the next one, so a layer's count of its passes tells."""
        return {
            i for i, counter in self._counters.items() if not after_optimizer or counter is None or counter in written
        }

    def drop_unchanged(self, changed: Sequence[Changed]) -> None:
        """One comparison of all statistics of all micro-batches, and one wait: each would stop a GPU."""
        kept = [(of_one, i) for of_one in changed for i in self._counters if i in of_one]
        if not kept:
            return
        differ = _differ([of_one[i] for of_one, i in kept], [self._common[i] for _, i in kept])
        for (of_one, i), does_differ in zip(kept, differ.tolist(), strict=True):
            if not does_differ:
                del of_one[i]

    def flags_like(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """A tensor of the shape of `flags`, the same one for the same indices; none without statistics."""
        if not (mine := self._among(indices)):
            return []
        if mine not in self._flags:
            device = self._common[mine[0]].device
            self._flags[mine] = torch.zeros(len(mine), device=device)
            self._sizes[mine] = torch.tensor([self._common[i].numel() for i in mine], device=device)
        return [self._flags[mine]]

    def flags(self, indices: Sequence[int], changed: Sequence[Changed]) -> list[list[torch.Tensor]]:
        """The flags of each micro-batch: whether it has changed each of the statistics among these buffers, as 1 or
        0."""
        if not (mine := self._among(indices)):
            return [[] for _ in changed]
        values = [of_one.get(i, self._common[i]) for of_one in changed for i in mine]
        differ = _differ(values, [self._common[i] for _ in changed for i in mine])
        return [[row] for row in differ.float().view(len(changed), len(mine))]

    def with_unchanged(
        self, indices: Sequence[int], values: Sequence[torch.Tensor], flags: torch.Tensor
    ) -> list[torch.Tensor]:
        """The new values, but the old ones of statistics that no micro-batch has changed: means may have other bits.

        flags: the sums over all micro-batches.
        """
        mine, chosen = self._among(indices), dict(zip(indices, values, strict=True))
        old = torch.cat([self._common[i].reshape(-1) for i in mine])
        new = torch.cat([chosen[i].reshape(-1) for i in mine])
        is_changed = flags.gt(0.0).repeat_interleave(self._sizes[mine], output_size=len(new))
        parts = torch.where(is_changed, new, old).split([self._common[i].numel() for i in mine])
        return list((chosen | {i: part.view_as(self._common[i]) for i, part in zip(mine, parts, strict=True)}).values())

    def _among(self, indices: Sequence[int]) -> tuple[int, ...]:
        return tuple(i for i in indices if i in self._counters)


def _differ(values: list[torch.Tensor], others: list[torch.Tensor]) -> torch.Tensor:
    """Whether the two of each pair differ, as a tensor on the device."""
    return torch.stack(torch._foreach_norm(torch._foreach_sub(values, others), ord=math.inf)).ne(0.0)


# --- gradients and buffers -----------------------------------------------------------------------------


class SharedGradients:
    """The gradient of the global batch after a backward pass, for one call after another.

    A call may change gradients in place, for example clip them; the next call must not see that.
    """

    def __init__(self) -> None:
        self._parameters: Sequence[torch.Tensor] = ()
        self._gradients: Tensors = []
        self._untouched: Tensors = []  # copies, for the calls after the first
        self._versions: list[int] = []  # torch's counts of changes in place

    def share(self, parameters: Sequence[torch.Tensor], gradients: Tensors, *, before: Tensors, num_calls: int) -> None:
        """before: gradients from before the backward pass, which are added. num_calls: that will be resumed."""
        with torch.no_grad():
            for earlier, gradient in zip(before, gradients, strict=True):
                if earlier is not None and gradient is not None:
                    gradient.add_(earlier)
        self._parameters = parameters
        self._gradients = [
            earlier if gradient is None else gradient for earlier, gradient in zip(before, gradients, strict=True)
        ]
        if num_calls > 1:
            self._untouched = _copies(self._gradients)
        self._versions = [0 if g is None else g._version for g in self._gradients]

    def keep_changes(self, *, num_calls: int) -> None:
        """Share what the gradients are now, after the last call has changed them as all calls have."""
        self._gradients = [parameter.grad for parameter in self._parameters]
        self._untouched = _copies(self._gradients) if num_calls > 1 else []
        self._versions = [0 if g is None else g._version for g in self._gradients]

    def restore(self) -> None:
        """Give every parameter the shared gradient, before a call resumes."""
        for i, (parameter, gradient) in enumerate(zip(self._parameters, self._gradients, strict=True)):
            parameter.grad = gradient
            if gradient is not None and self._untouched and may_have_changed(gradient, self._versions[i]):
                untouched = self._untouched[i]
                assert untouched is not None
                gradient.copy_(untouched)
                self._versions[i] = gradient._version

    def is_unchanged(self) -> bool:
        """Whether all parameters still have the shared gradient."""
        return all(
            parameter.grad is gradient and (gradient is None or not may_have_changed(gradient, version))
            for parameter, gradient, version in zip(self._parameters, self._gradients, self._versions, strict=True)
        )

    def values(self) -> dict[int, torch.Tensor | None]:
        """The shared gradient by id of the parameter, also if the last call has changed it."""
        values = [
            untouched if gradient is not None and may_have_changed(gradient, version) else gradient
            for gradient, untouched, version in zip(
                self._gradients, self._untouched or self._gradients, self._versions, strict=True
            )
        ]
        return {id(parameter): value for parameter, value in zip(self._parameters, values, strict=True)}

    def clear(self) -> None:
        """Drop the shared gradient after the optimizer's step, or after a failed step."""
        self._parameters, self._gradients, self._untouched, self._versions = (), [], [], []


class Buffers:
    """The buffers of one model, on which several micro-batches work alternately."""

    def __init__(self, model: nn.Module, computed: Sequence[MicroBatch]) -> None:
        owned = _owned_buffers(model)
        self._owners = [(module, name) for module, name, _ in owned]
        self._working = [buffer for _, _, buffer in owned]
        self._common = [buffer.detach().clone() for buffer in self._working]
        self._versions = [buffer._version for buffer in self._working]
        self._statistics = LayerStatistics(self._owners, self._common)
        self._has_stepped = False  # the optimizer, in this step
        self._queues = [i for i, (module, _) in enumerate(self._owners) if may_be_queue(module, self._working[i])]
        self._steps_watched = 0  # for queues
        self._computed = computed
        self._changed: list[dict[int, torch.Tensor]] = [{} for _ in computed]  # by micro-batch, in this step
        self._active: int | None = None

    def name(self, index: int) -> str:
        """Of a buffer, with the type of its module."""
        module, name = self._owners[index]
        return f"{name} of {type(module).__name__}"

    def begin_step(self) -> None:
        self._has_stepped = False
        self._steps_watched += 1

    def note_loaded(self) -> None:
        """Note between two steps that the model's buffers have been loaded."""
        _copy_all(self._common, self._working)
        self._versions = [buffer._version for buffer in self._working]

    def take_over(self) -> dict[int, torch.Tensor]:
        """Let what a script has written between two steps hold for all micro-batches. Returns it, by index."""
        written = self._taken()
        self.put(written)
        return written

    def put(self, values: Mapping[int, torch.Tensor]) -> None:
        """Give all micro-batches what `take_over` has returned."""
        _copy_all([self._common[i] for i in values], list(values.values()))
        self._write(values, {})

    def undo(self) -> None:
        """Undo what a script has written between two steps."""
        self._write(self._taken(), {})

    def _taken(self) -> dict[int, torch.Tensor]:
        taken: dict[int, torch.Tensor] = {}
        self._keep(taken, only_written=True)
        return taken

    def activate(self, index: int | None) -> None:
        """Give the model the buffers of one micro-batch computed here. None: the common ones."""
        if self._active is not None:
            self._keep(self._changed[self._active])
        if index != self._active:
            before = self._changed[self._active] if self._active is not None else {}
            after = self._changed[index] if index is not None else {}
            self._write(before.keys() | after.keys(), after)
        self._active = index

    def roll_back(self) -> None:
        """Undo all changes of this step."""
        self.activate(None)
        touched = {i for changed in self._changed for i in changed}
        self._changed = [{} for _ in self._computed]
        self._write(touched, {})

    def changes(self) -> list[list[float]]:
        """A row for each micro-batch computed here: for each buffer, 1 if it was changed, else 0.

        Statistics of layers count before the optimizer's step if they may have changed: `combine` finds whether they
        have. After it, a comparison tells, which waits for the device if one of these layers has run again.
        """
        if self._has_stepped:
            self._statistics.drop_unchanged(self._changed)
        return [[float(i in changed) for i in range(len(self._working))] for changed in self._changed]

    def changed_values(self) -> list[dict[int, torch.Tensor]]:
        """The buffers that each micro-batch computed here has changed, by index. Waits for the device."""
        self._statistics.drop_unchanged(self._changed)
        return [dict(changed) for changed in self._changed]

    def replace_changes(self, changed: Sequence[dict[int, torch.Tensor]]) -> None:
        """Replace what was found here for each micro-batch with what another process has found."""
        self.activate(None)
        self._changed = [dict(each) for each in changed]

    def combine(self, indices: Sequence[int], summed: TensorSum) -> None:
        """A collective if indices is not empty: give all workers the same buffers.

        indices: of the buffers that any micro-batch on any worker has changed.
        """
        if indices:
            self._require_no_queue(indices)
            common = [self._common[i] for i in indices]
            like = [*common, *self._statistics.flags_like(indices)]
            flags = self._statistics.flags(indices, self._changed)
            rows = (
                [*_weighted([changed.get(i, self._common[i]) for i in indices], micro_batch), *mine]
                for micro_batch, changed, mine in zip(self._computed, self._changed, flags, strict=True)
            )
            sums = [value for value in summed.of(self._computed, rows, like) if value is not None]
            summed.check_received()
            values = sums[: len(common)]
            for summed_flags in sums[len(common) :]:
                values = self._statistics.with_unchanged(indices, values, summed_flags)
            _copy_all(common, values)
        self._changed = [{} for _ in self._computed]
        self._write(indices, {})
        self._has_stepped = True

    def _require_no_queue(self, indices: Sequence[int]) -> None:
        if self._steps_watched > NUM_STEPS:
            return
        sizes = [part.samples.stop - part.samples.start for part in self._computed]
        for i in set(self._queues) & set(indices):
            if all(i in changed for changed in self._changed):
                values = [changed[i] for changed in self._changed]
                require_no_queue(*self._owners[i], self._common[i], values, sizes)

    def _keep(self, changed: dict[int, torch.Tensor], *, only_written: bool = False) -> None:
        """What is or may be changed."""
        current = [module._buffers[name] for module, name in self._owners]
        there = {i: value for i, value in enumerate(current) if value is not None}
        written = {i for i, value in there.items() if self._is_written(i, value)}
        suspected = set() if only_written else self._statistics.suspected(written, after_optimizer=self._has_stepped)
        kept = {i: value.detach() for i, value in there.items() if i in written or i in suspected}
        copies = [torch.empty_like(value) for value in kept.values()]
        _copy_all(copies, list(kept.values()))
        changed.update(zip(kept, copies, strict=True))
        replaced = [i for i in kept if current[i] is not self._working[i]]
        for i in replaced:
            module, name = self._owners[i]
            module._buffers[name] = self._working[i]
        self._write(replaced, changed)

    def _is_written(self, i: int, current: torch.Tensor) -> bool:
        return current is not self._working[i] or current._version != self._versions[i]

    def _write(self, indices: Iterable[int], changed: dict[int, torch.Tensor]) -> None:
        indices = list(indices)
        _copy_all([self._working[i] for i in indices], [changed.get(i, self._common[i]) for i in indices])
        for i in indices:
            self._versions[i] = self._working[i]._version


def _copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(all_local(targets), all_local(sources))


def buffers_of(model: nn.Module) -> list[torch.Tensor]:
    """Each once, those outside of the state_dict too."""
    return [buffer for _, _, buffer in _owned_buffers(model)]


def _owned_buffers(model: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor]]:
    found = {
        id(buffer): (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    }
    return list(found.values())


def _weighted(values: Sequence[torch.Tensor], micro_batch: MicroBatch) -> list[torch.Tensor]:
    """Terms of the sums over all micro-batches; with as many kernels for many values as for one."""
    floats = {i: value for i, value in enumerate(values) if value.is_floating_point() or value.is_complex()}
    others = {i: torch.empty_like(value) for i, value in enumerate(values) if i not in floats}
    terms = dict(others)
    if floats:
        terms |= zip(floats, torch._foreach_mul(list(floats.values()), micro_batch.weight), strict=True)
    if micro_batch.virtual_node == micro_batch.index == 0:
        _copy_all(list(others.values()), [values[i] for i in others])
    elif others:
        torch._foreach_zero_(list(others.values()))
    return [terms[i] for i in range(len(values))]


def _copies(values: Tensors) -> Tensors:
    made = {i: torch.empty_like(value) for i, value in enumerate(values) if value is not None}
    _copy_all(list(made.values()), [value for value in values if value is not None])
    return [made.get(i) for i in range(len(values))]


# --- carried gradients --------------------------------------------------------------------------------
# Gradients that outlive their step, for example of parameters that no optimizer clears, or of a job that steps every
# n-th iteration. They are state of the job: later backward passes add to them.
#
# Most jobs clear their gradients before the next backward pass, so nothing of them is copied, stored or sent. What a
# worker has seen of that is state, too: all workers must send the same tensors, also those that have just joined.

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
