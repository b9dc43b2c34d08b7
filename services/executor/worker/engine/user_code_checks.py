"""Checks of what user code returns and does; a violation fails the job with a message that says what to change."""

import math
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from elasticflow.services.executor.worker.checkpoint.store import unreadable_types
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.device import DeviceMemoryExceeded, Number, number_of
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
        "is_evaluated",
        "records",
        "iteration",
        "epoch",
        "samples",
        "stream",
        "metrics",
        "metric_names",
        "optimizer_type",
        "virtual_nodes",
        "owner",
    }  # see job_state.py, training_step.py and store.py
)


def require_same_metrics(expected: tuple[str, ...], returned: Sequence[tuple[str, ...]], iteration: int) -> None:
    """Require the same metrics of all calls of train(): workers that exchanged vectors of different lengths would fail
    obscurely."""
    for names in returned:
        if names != expected:
            raise TrainingFailed(
                f"train() returned the metrics {', '.join(names)} in iteration {iteration}, "
                f"but {', '.join(expected)} in the first; return the same metrics in each call"
            )


def require_few_metrics(metrics: Mapping[str, float]) -> None:
    """An executor ends a worker that reports more, or other names, without a word to the user."""
    if wrong := [name for name in metrics if not _is_name(name)]:
        raise TrainingFailed(
            f"train() and evaluate() returned metrics with the names {', '.join(map(ascii, wrong[:3]))}: a name needs "
            "characters, none of them a control character or the byte of a file name that is not UTF-8"
        )
    longest = max(map(len, metrics), default=0)
    num_bytes = metrics_bytes(metrics)
    if len(metrics) > MAX_FEW_ITEMS or num_bytes > MAX_METRICS_BYTES or longest > MAX_NAME_LENGTH:
        raise TrainingFailed(
            f"train() and evaluate() returned {len(metrics)} metrics of {num_bytes:,} bytes, the longest name has "
            f"{longest} characters; at most {MAX_FEW_ITEMS}, {MAX_METRICS_BYTES:,} and {MAX_NAME_LENGTH} are allowed: "
            "return fewer, with shorter names"
        )


def _is_name(name: str) -> bool:
    return (name.isprintable() and name != "") or bool(re.fullmatch(r"[^\x00-\x1f\ud800-\udfff]+", name))


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


def memory_exceeded(
    micro_batch_size: int, reason: str, iteration: int, num_steps: int
) -> DeviceMemoryExceeded | TrainingFailed:
    """Smaller micro-batches may help; if there are none, only the user can. num_steps: that this process has done."""
    if micro_batch_size > 1:
        return DeviceMemoryExceeded(micro_batch_size, reason)
    if num_steps:
        return TrainingFailed(
            f"the memory is exceeded in iteration {iteration} by a single sample, although {num_steps} steps before it "
            f"did fit: {reason}; either the code keeps memory from one step to the next (use float(loss) or "
            "loss.detach(), and bound lists and caches), or this sample is larger than the others"
        )
    return TrainingFailed(
        f"a single sample exceeds the memory in iteration {iteration}: {reason}; use a smaller model, "
        "recompute activations (torch.utils.checkpoint), use GPUs with more memory, or shard it over several: a script "
        "with fully_shard() and --torchrun"
    )


def refuse_leak(error: Exception, growth: str, iteration: int) -> None:
    """Raises TrainingFailed if the memory has grown until this error: smaller micro-batches would only be later."""
    if growth:
        raise TrainingFailed(
            f"{growth}, and was exceeded in iteration {iteration}: {str(error).partition(chr(10))[0]}; this is a leak: "
            "keep no losses with their graphs (use float(loss) or loss.detach()), and bound lists and caches that grow "
            "in each step"
        ) from None


_NAMED = 3  # of many parameters, in an error


def require_model(made: Any) -> nn.Module:
    """A whole one, with the sizes of all its parameters."""
    if not isinstance(made, nn.Module):
        raise TrainingFailed(f"init_model() must return a torch.nn.Module, not {_kind_of(made)}")
    if isinstance(made, DistributedDataParallel):
        raise TrainingFailed(
            "init_model() returned a model in DistributedDataParallel: return the model itself, since the job sums "
            "gradients over all its workers"
        )
    if lazy := [name for name, each in (*made.named_parameters(), *made.named_buffers()) if is_lazy(each)]:
        raise TrainingFailed(
            f"init_model() returned a module with uninitialized parameters ({', '.join(lazy[:_NAMED])}): run one "
            "forward pass in it, so that they have their sizes"
        )
    if divided := [name for name, each in made.named_parameters() if hasattr(each, "device_mesh")]:
        raise TrainingFailed(
            f"init_model() returned a model whose parameters are divided ({', '.join(divided[:_NAMED])}): leave "
            "fully_shard() and parallelize_module() out; shard_optimizer = True divides the optimizer's state. A model "
            "that needs several GPUs trains as a script with --torchrun"
        )
    return made


def require_optimizer(made: Any) -> torch.optim.Optimizer:
    """Anything with the methods of an optimizer, and one pass over the batch for each step."""
    if isinstance(made, torch.optim.LBFGS):
        raise TrainingFailed(
            "LBFGS is not supported: it computes the loss several times in a step, and decides by that of one part of "
            "the batch; use an optimizer with one pass for each step, such as torch.optim.AdamW"
        )
    if not (hasattr(made, "param_groups") and callable(getattr(made, "step", None))):
        raise TrainingFailed(
            f"init_optimizer() must return a torch.optim.Optimizer, not {_kind_of(made)}; "
            "return one, keep the others in attributes, and let stateful() return those"
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


def require_known_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer, further: Mapping[str, Stateful]
) -> None:
    """Require that each parameter of the optimizer is part of the job's state."""
    modules = [model, *(each for each in further.values() if isinstance(each, nn.Module))]
    known = {id(parameter) for module in modules for parameter in module.parameters()}
    unknown = [each for group in optimizer.param_groups for each in group["params"] if id(each) not in known]
    if unknown:
        raise TrainingFailed(
            f"the optimizer has a parameter of shape {tuple(unknown[0].shape)} that is not in the model: workers that "
            "join and checkpoints would not have it. Make it a part of the model that init_model() returns, or return "
            "its module from stateful() (a script: pass that to elasticflow.elastic() behind the optimizer)"
        )


def refuse_later_groups(optimizer: torch.optim.Optimizer) -> None:
    """Refuse groups that train() adds: a worker that joins later, and one that starts from a checkpoint, would lack
    them."""

    def refuse(*_: Any, **__: Any) -> None:
        raise TrainingFailed(
            "train() added a parameter group to the optimizer, which workers that join later would lack: let "
            "init_optimizer() return an optimizer of all groups, and freeze parameters by requires_grad_(False) until "
            "self.iteration says that they train"
        )

    optimizer.add_param_group = refuse


def refuse_single_sample(error: Exception, cut: VirtualNodes, iteration: int) -> None:
    """Raises TrainingFailed if this is the error of a BatchNorm that got one sample, because the batch is cut."""
    if "Expected more than 1 value per channel when training" not in str(error):
        return
    sizes = [part.samples.stop - part.samples.start for v in range(cut.count) for part in cut.micro_batches(v)]
    if min(sizes) > 1 or cut.global_batch_size < 2:
        return
    reason = f"the global batch of {cut.global_batch_size} samples is cut into {len(sizes)} parts, some with one sample"
    advice = (
        "micro-batches this small are due to the memory: use GroupNorm, or GPUs with more memory"
        if cut.are_cut
        else f"set virtual_nodes (in the fast mode, max_gpus) to at most {cut.global_batch_size // 2}, or raise "
        "global_batch_size"
    )
    raise TrainingFailed(
        f"a BatchNorm got a virtual node of one sample in iteration {iteration}, of which it has no variance: "
        f"{reason}; {advice}"
    ) from error


# --- objects that outlive a call of train() ---

_CALL: ContextVar[object | None] = ContextVar("call", default=None)  # of train(), in this thread
_first_uses: WeakKeyDictionary[Any, object | None] = WeakKeyDictionary()


def begin_call() -> None:
    """Begin a call of train(), in its thread."""
    _CALL.set(object())


def require_of_one_call(used: Any, reason: str) -> None:
    """An object that is no state of the job. Raises TrainingFailed if another call of train() has used it."""
    if _first_uses.setdefault(used, _CALL.get()) is not _CALL.get():
        raise TrainingFailed(reason)


def _kind_of(made: Any) -> str:
    return "None" if made is None else f"a {type(made).__name__}"


def as_metrics(returned: Any) -> dict[str, Number]:
    """The result of `train` as numbers by name, in the order of names; those of a device are not waited for."""
    values = returned if isinstance(returned, Mapping) else {"loss": returned}
    try:
        return {str(name): number_of(value) for name, value in sorted(values.items())}
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TrainingFailed(
            f"train() returned {type(returned).__name__}: return the loss, or a mapping of names to numbers"
        ) from error
