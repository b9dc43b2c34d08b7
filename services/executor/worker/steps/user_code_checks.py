"""Checks of what user code returns and does; a violation fails the job with a message that says what to change."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from elasticflow.services.executor.worker.checkpoint.store import unreadable_types
from elasticflow.services.executor.worker.process.device import MemoryExceeded
from elasticflow.services.executor.worker.process.device_numbers import Number, number_of
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed
from elasticflow.shared.messages.limits import MAX_FEW_ITEMS, MAX_METRICS_BYTES, MAX_NAME_LENGTH, metrics_bytes
from elasticflow.shared.training_interface import Stateful

_STATEFUL = ("state_dict", "load_state_dict")
_NAMES_IN_STATE = frozenset(
    {
        "model",
        "optimizer",
        "buffers",
        "gradients",
        "attributes",
        "iteration",
        "epoch",
        "samples",
        "metrics",
        "metric_names",
    }  # see job_state.py
)


def require_same_metrics(expected: tuple[str, ...], returned: Sequence[tuple[str, ...]], iteration: int) -> None:
    """Of all calls of train(): workers that exchanged vectors of different lengths would fail obscurely."""
    for names in returned:
        if names != expected:
            raise TrainingFailed(
                f"train() returned the metrics {', '.join(names)} in iteration {iteration}, "
                f"but {', '.join(expected)} in the first; return the same metrics in each call"
            )


def require_few_metrics(metrics: Mapping[str, float]) -> None:
    """An executor ends a worker that reports more, without a word to the user."""
    longest = max(map(len, metrics), default=0)
    num_bytes = metrics_bytes(metrics)
    if len(metrics) > MAX_FEW_ITEMS or num_bytes > MAX_METRICS_BYTES or longest > MAX_NAME_LENGTH:
        raise TrainingFailed(
            f"train() and evaluate() returned {len(metrics)} metrics of {num_bytes:,} bytes, the longest name has "
            f"{longest} characters; at most {MAX_FEW_ITEMS}, {MAX_METRICS_BYTES:,} and {MAX_NAME_LENGTH} are allowed: "
            "return fewer, with shorter names"
        )


def require_finite_loss(metrics: Mapping[str, float], hyperparameters: Mapping[str, Any], iteration: int) -> None:
    loss = metrics.get("loss", 0.0)
    if not math.isfinite(loss):
        rate = hyperparameters.get("learning_rate", "not set")
        raise TrainingFailed(
            f"the loss is {loss} in iteration {iteration}: lower the learning rate (it is {rate}), "
            "clip the gradients, or look for bad samples"
        )


def require_readable_state(stateful: Mapping[str, Stateful]) -> None:
    """An unreadable state must fail the job now, not at its first resize."""
    for part, each in stateful.items():
        if names := unreadable_types(each.state_dict()):
            raise TrainingFailed(
                f"the {part}'s state holds {', '.join(sorted(names))}: checkpoints hold tensors and "
                "plain numbers only; use float(...) or int(...)"
            )


def memory_exceeded(micro_batch_size: int, reason: str, iteration: int) -> MemoryExceeded | TrainingFailed:
    """Smaller micro-batches may help; if there are none, only the user can."""
    if micro_batch_size > 1:
        return MemoryExceeded(micro_batch_size, reason)
    return TrainingFailed(
        f"a single sample exceeds the memory in iteration {iteration}: {reason}; use a smaller model, "
        "recompute activations (torch.utils.checkpoint), or use GPUs with more memory"
    )


def require_model(made: Any) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise TrainingFailed(f"init_model() must return a torch.nn.Module, not {_kind_of(made)}")
    return made


def require_optimizer(made: Any) -> torch.optim.Optimizer:
    """Anything with the methods of an optimizer."""
    if not (hasattr(made, "param_groups") and callable(getattr(made, "step", None))):
        raise TrainingFailed(
            f"init_optimizer() must return a torch.optim.Optimizer, not {_kind_of(made)}; "
            "to combine several optimizers, as in a GAN, return one with a parameter group for each"
        )
    return made


def require_stateful(made: Any) -> Mapping[str, Stateful]:
    """What stateful() returned."""
    if not isinstance(made, Mapping):
        raise TrainingFailed(f"stateful() must return objects by name, not {_kind_of(made)}")
    for name, each in made.items():
        if name in _NAMES_IN_STATE:
            raise TrainingFailed(f'stateful() returned an object named "{name}", as a part of each state: rename it')
        missing = [f"{method}()" for method in _STATEFUL if not callable(getattr(each, method, None))]
        if missing:
            raise TrainingFailed(
                f'stateful() returned "{name}", of type {type(each).__name__}, without {" and ".join(missing)}: add '
                "what is missing, so that workers that join and checkpoints have its state, or derive it from "
                "self.iteration"
            )
    require_readable_state(made)
    return dict(made)


def refuse_gradient_scaling() -> None:
    """In this process: a scaler's factor is no state of a job, so workers that join would scale by another one."""
    torch.amp.GradScaler.scale = _refuse_to_scale  # pyright: ignore[reportAttributeAccessIssue] - has overloads


def _refuse_to_scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
    if scaler.is_enabled():
        raise TrainingFailed(
            "GradScaler is not supported: its scale would differ between workers, and bits between their numbers; use "
            "torch.autocast(..., dtype=torch.bfloat16), which needs no scaler, or GradScaler(enabled=False)"
        )
    return outputs


def _kind_of(made: Any) -> str:
    return "None" if made is None else f"a {type(made).__name__}"


def as_metrics(returned: Any) -> dict[str, Number]:
    """The result of `train` as numbers by name, in the order of names; those of a device are not waited for."""
    values = returned if isinstance(returned, Mapping) else {"loss": returned}
    try:
        return {str(name): number_of(value) for name, value in sorted(values.items())}
    except (TypeError, ValueError, RuntimeError) as error:
        raise TrainingFailed(
            f"train() returned {type(returned).__name__}: return the loss, or a mapping of names to numbers"
        ) from error
