"""What is asked of users' code while it trains: what breaks a rule fails the job, and says how to mend it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from services.executor.worker.checkpoint import unreadable_types
from services.executor.worker.training_function import Stateful, TrainingFailed


def same_metrics(expected: tuple[str, ...], returned: Sequence[tuple[str, ...]], iteration: int) -> None:
    """Of all calls of train(): workers that sent vectors of different length to each other would end without a word."""
    for names in returned:
        if names != expected:
            raise TrainingFailed(
                f"train() returned the metrics {', '.join(names)} in iteration {iteration}, "
                f"but {', '.join(expected)} in the first; return the same ones each time"
            )


def same_everywhere(same: bool, iteration: int, model: nn.Module) -> None:
    """model: as train() got it."""
    if same:
        return
    if isinstance(model, DistributedDataParallel) and not model.find_unused_parameters:
        without = [name for name, p in model.module.named_parameters() if p.requires_grad and p.grad is None]
        if without:  # torch has not summed what lies beside it, and would say so in the next step
            raise TrainingFailed(
                f"the parameter {without[0]} has no gradient in iteration {iteration}, which the fast mode waits for: "
                'set find_unused_parameters = True, or reproducible = "bitwise"'
            )
    raise TrainingFailed(
        f"the workers do not hold the same after iteration {iteration}: the settings or the parameters of "
        "one differ; let what init_model() makes follow from the generators of torch, numpy or Python as they are, "
        "which are seeded alike everywhere, and what train() changes, such as a learning rate, from self.iteration, "
        "not from attributes, which a worker that joins later does not have"
    )


def finite_loss(metrics: Mapping[str, float], hyperparameters: Mapping[str, Any], iteration: int) -> None:
    loss = metrics.get("loss", 0.0)
    if not math.isfinite(loss):
        rate = hyperparameters.get("learning_rate", "not set")
        raise TrainingFailed(
            f"the loss is {loss} in iteration {iteration}: lower the learning rate (it is {rate}), "
            "clip the gradients, or look for bad samples"
        )


def readable_state(stateful: Mapping[str, Stateful]) -> None:
    """A state that cannot be read back must fail the job now, not at its first resize."""
    for part, each in stateful.items():
        if names := unreadable_types(each.state_dict()):
            raise TrainingFailed(
                f"the {part}'s state holds {', '.join(sorted(names))}: checkpoints carry tensors and "
                "plain numbers only; use float(...) or int(...)"
            )


def one_sample_that_fits(reason: str, iteration: int) -> TrainingFailed:
    return TrainingFailed(
        f"one sample at a time does not fit into the memory in iteration {iteration}: {reason}; take a "
        "smaller model, recompute activations (torch.utils.checkpoint), or run it on GPUs with more memory"
    )
