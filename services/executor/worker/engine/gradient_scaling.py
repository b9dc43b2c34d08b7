"""torch's GradScaler (float16) as state of a job: all calls and workers scale alike, and skip the same steps.

Gradients are summed while they are scaled. So each call of train() looks for infinities in the gradient of the global
batch, and all find the same. What a scaler has found in the present step belongs to each call, as its scale does.
"""

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
# (torch has no public way to read what a scaler has found, and types no replaced methods)

from collections.abc import Mapping
from functools import wraps
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState
from torch.autograd.graph import increment_version

from elasticflow.services.executor.worker.engine.user_code_checks import require_of_one_call
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.training_interface import Stateful

_scale, _unscale = GradScaler.scale, GradScaler.unscale_
_known: set[int] = set()  # scalers that are state of the job


class ScalerState:
    """A scaler as `Stateful`. The device has its numbers: no host waits for them."""

    def __init__(self, scaler: GradScaler, optimizers: list[torch.optim.Optimizer], device: torch.device) -> None:
        self._scaler, self._optimizers = scaler, optimizers
        if scaler._scale is None:
            scaler._lazy_init_scale_growth_tracker(device)
        _known.add(id(scaler))

    def state_dict(self) -> dict[str, Any]:
        """The state as torch's scaler returns it, but with tensors for its numbers. Between two steps nothing is
        found."""
        scaler = self._scaler
        assert scaler._scale is not None
        assert scaler._growth_tracker is not None
        return {
            "scale": scaler._scale,
            "growth_factor": scaler.get_growth_factor(),
            "backoff_factor": scaler.get_backoff_factor(),
            "growth_interval": scaler.get_growth_interval(),
            "_growth_tracker": scaler._growth_tracker,
            "found": {
                index: (found["stage"].value, {str(device): t for device, t in found["found_inf_per_device"].items()})
                for index, optimizer in enumerate(self._optimizers)
                if (found := scaler._per_optimizer_states.get(id(optimizer))) is not None
            },
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self._scaler.load_state_dict({name: value for name, value in state.items() if name != "found"})
        found = self._scaler._per_optimizer_states
        found.clear()
        for index, (stage, infinities) in state["found"].items():
            on_device = {torch.device(device): tensor for device, tensor in infinities.items()}
            found[id(self._optimizers[index])] = {"stage": OptState(stage), "found_inf_per_device": on_device}


def with_scalers(
    stateful: Mapping[str, Any], optimizer: torch.optim.Optimizer, device: torch.device
) -> Mapping[str, Stateful]:
    """What stateful() returned, with its scalers as state. From now on, others are refused in this process, unless
    train() makes a new one in each call."""
    further = [each for each in stateful.values() if isinstance(each, torch.optim.Optimizer)]
    for each in (optimizer, *further):
        each._step_supports_amp_scaling = False  # or it would skip within its step, and change the scale of other calls
    GradScaler.scale, GradScaler.unscale_ = _refusing_unknown, _unscale_counted
    return {
        name: ScalerState(each, [optimizer, *further], device)
        if isinstance(each, GradScaler) and each.is_enabled()
        else each
        for name, each in stateful.items()
    }


@wraps(_scale)
def _refusing_unknown(scaler: GradScaler, outputs: Any) -> Any:
    if scaler.is_enabled() and id(scaler) not in _known:
        require_of_one_call(
            scaler,
            "train() uses a GradScaler that is no state of the job, so that its scale would differ between workers: "
            "make it in init_optimizer() and let stateful() return it",
        )
    return _scale(scaler, outputs)


@wraps(_unscale)
def _unscale_counted(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """torch's kernel counts no version, by which a step finds the gradients that a call has changed."""
    _unscale(scaler, optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                increment_version(parameter.grad)


def refuse_gradient_scaling() -> None:
    """Refuse scaling in this process, where no state beside the model and the optimizer is shared within a step."""
    GradScaler.scale = _refuse_to_scale


def _refuse_to_scale(scaler: GradScaler, outputs: Any) -> Any:
    if scaler.is_enabled():
        raise TrainingFailed(
            "GradScaler is not supported in scripts and in training tasks: submit a class whose stateful() returns the "
            "scaler, or use torch.autocast(..., dtype=torch.bfloat16), which needs none"
        )
    return outputs
