"""What all workers of a job must have in common; workers compare it in their rendezvous, before any tensor travels.

Workers that sent tensors of different shapes would fail without an explanation (gloo ends the process, NCCL waits) or,
worse, continue. The comparison finds a node with another release of torch or numpy, or another copy of the code, and
names it.
"""

import hashlib
import inspect
import io
import platform
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from elasticflow.services.executor.worker.group.nested_tensors import TensorPlaceholder
from elasticflow.services.executor.worker.interface import TrainingFailed, TrainingFunction
from elasticflow.services.executor.worker.process.compiled_models import is_compiled
from elasticflow.services.executor.worker.process.device import driver_version
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.training_interface import Stateful

CompatibilityDigest = dict[str, str]  # value or hash, by property

_DRIVER = "driver"  # may differ, since NCCL connects drivers of several versions
_COMPILED_ADVICE = (
    '; a compiled model gives other bits on another kind of processor: set reproducible = "fast", name one gpu_type, '
    "or do not compile"
)
_SAMPLES_ADVICE = (
    ". If the script draws the order of its samples in each process by itself, let its sampler draw from a fixed seed"
)


def compatibility_digest(
    function: TrainingFunction,
    spec: JobSpec,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    additional: Mapping[str, Stateful],
    samples: str,
) -> CompatibilityDigest:
    """The digest of this worker. additional: objects of stateful(). samples: `DataSet.samples_digest`."""
    groups = [len(group["params"]) for group in optimizer.param_groups]
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        **({"Python": ".".join(platform.python_version_tuple()[:2])} if spec.own_environment is not None else {}),
        "training function": f"{spec.training_function} {_hash(spec.code_digest, _source_of(function))}",
        "hyperparameters": str(sorted(function.hyperparameters.items())),
        "seed": str(spec.seed),
        "mode": f"{function.reproducible}, {function.virtual_nodes} virtual nodes",
        "samples": samples,
        "parameters": _tensors(model.named_parameters()),
        "buffers": _tensors(model.named_buffers()),
        "optimizer": f"{type(optimizer).__qualname__} of {groups}",
        "stateful()": str({name: type(each).__name__ for name, each in sorted(additional.items())}),
        "compiled for": "" if spec.mixed_gpu_types or function.reproducible == "fast" else _compiled_for(model),
        _DRIVER: driver_version(),
    }


def require_compatible(mine: CompatibilityDigest, first: CompatibilityDigest) -> None:
    """first: that of rendezvous rank 0. Raises TrainingFailed, naming all differences."""
    differences = {
        name: f"{name}: {mine.get(name)} here, {first.get(name)} there"
        for name in {**mine, **first}
        if mine.get(name) != first.get(name)
    }
    if driver := differences.pop(_DRIVER, None):
        log.warning("drivers_differ", versions=driver, advice="install one version of the driver on all nodes")
    if differences:
        advice = _COMPILED_ADVICE if "compiled for" in differences else ""
        advice += _SAMPLES_ADVICE if "drawn" in differences.get("samples", "") else ""
        raise TrainingFailed(
            f"this worker differs from rank 0 of its rendezvous: {'; '.join(differences.values())}; install the same "
            f"code, data and releases of torch and numpy on all nodes{advice}"
        )


def _tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The number and a hash of the tensors, in the order in which they travel."""
    described = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]
    return f"{len(described)} {_hash(described)}"


def _compiled_for(model: nn.Module) -> str:
    """What decides the kernels of torch.compile; "" if no part of the model is compiled."""
    if not any(is_compiled(module) for module in model.modules()):
        return ""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_initialized() else ""
    return f"{torch.backends.cpu.get_cpu_capability()} {gpu}".strip()


def _source_of(function: TrainingFunction) -> str:
    """The module of the user's class; "" if its source is unavailable."""
    try:
        return inspect.getsource(sys.modules[type(function).__module__])
    except (OSError, TypeError, KeyError):
        return ""


def _hash(*values: Any) -> str:
    return "#" + hashlib.sha256(repr(values).encode()).hexdigest()[:12]


# --- plain values --------------------------------------------------------------------------------------
# Values that workers send each other, as bytes whose reader runs no code from them: those that a checkpoint may hold.
#
# A worker's peers are not proven to be its peers: gloo authenticates no connection.

# For the whole process: permission for a time would end that of another thread.
torch.serialization.add_safe_globals([TensorPlaceholder])


def encode_value(value: Any) -> bytes:
    """Numbers, texts, tensors, torch's types, and dicts, lists and tuples of them, with placeholders for tensors."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def decode_value(content: bytes) -> Any:
    """Raises pickle.UnpicklingError for any other value."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
