"""An event as one line: the keys and numbers that logs, tables and `eflow events` show."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from itertools import islice
from typing import Any, cast

from elasticflow.shared.messages.events import PlacedJob, StoredFile, UnstoredFile
from elasticflow.shared.messages.gpus import GpuId, ShareSchedule, segments
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.messages.pool_config import PoolConfig

_LONG = 200
_MANY = 32


def summary(message: Any) -> dict[str, Any]:
    """The message's fields, shortened: the main fields of a spec, GPUs as node:0,1, schedules as steps."""
    shown: dict[str, Any] = {}
    for field in fields(message):
        value = getattr(message, field.name)
        if value is None or value == () or value == "":
            continue
        if isinstance(value, JobSpec):
            shown |= _main_fields(value)
        elif field.name == "minimum_satisfactory_share":
            shown[field.name] = _steps(value)
        elif field.name in ("replanned", "planned"):
            shown[field.name] = _few({job_id: _steps(value[job_id]) for job_id in islice(value, _MANY)}, value)
        else:
            shown[field.name] = _short(value)
    return shown


def counted(count: int, noun: str) -> str:
    """The number and the noun, as "1 iteration" or "2,000 iterations"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def gpus_counted(count: int, gpu_type: str = "") -> str:
    """The number of GPUs, as "1 GPU" or "4 GPUs of type V100"."""
    return counted(count, "GPU") + (f" of type {gpu_type}" if gpu_type else "")


def gpus_in_words(gpus: tuple[GpuId, ...]) -> str:
    """GPUs by node, in rank order: "a:0,1 b:2"."""
    by_node: dict[str, list[int]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node_id, []).append(gpu.gpu_index)
    return " ".join(f"{node}:{','.join(map(str, indices))}" for node, indices in by_node.items())


def gpus_of_words(text: str) -> tuple[GpuId, ...]:
    """The GPUs of a text that `gpus_in_words` could have written. Raises ValueError, which says what is wrong."""
    gpus = list[GpuId]()
    for of_node in text.split():
        node_id, separator, indices = of_node.rpartition(":")
        numbers = indices.split(",")
        if not separator or not node_id or not all(each.isascii() and each.isdigit() for each in numbers):
            raise ValueError(f"{of_node!r} is not NODE:INDEX; write node-1:3, or node-1:0,3 for two GPUs of a node")
        gpus += (GpuId(node_id, int(number)) for number in numbers)
    return tuple(gpus)


def memory_in_words(num_bytes: int) -> str:
    """The memory of a GPU, as "79.6 GiB" or "4,096 GiB"; "" if unknown."""
    gib = num_bytes / 2**30
    return (f"{gib:.3g} GiB" if gib < 1000.0 else f"{gib:,.0f} GiB") if num_bytes else ""


def _steps(schedule: ShareSchedule) -> list[str]:
    return [f"{gpus_counted(s.num_gpus)} for {s.end_s - s.start_s:.1f} s" for s in islice(segments(schedule), _MANY)]


def _few(shown: dict[str, Any], items: Mapping[str, Any]) -> dict[str, Any]:
    """The shown part of a map, and the number of items that are left out."""
    return shown if len(shown) == len(items) else {**shown, "...": f"{len(items) - len(shown)} more"}


def _main_fields(spec: JobSpec) -> dict[str, Any]:
    return {
        "training_function": spec.training_function,
        "global_batch_size": spec.global_batch_size,
        "max_iterations": spec.max_iterations,
        "job_class": spec.job_class.value,
    }


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, PoolConfig):
        names = ("resize_cost_s", "throughput_margin", "confidence", "reserve_nodes")
        return {name: known for name in names if (known := getattr(value, name))}
    if isinstance(value, PlacedJob):
        return f"{value.job_id} g{value.generation} on {gpus_in_words(value.gpus) or 'nothing'}"
    if isinstance(value, StoredFile):
        return f"{value.path} of {value.num_bytes} bytes, {value.digest:.12}"
    if isinstance(value, UnstoredFile):
        return f"{value.path}: {value.reason}"
    if isinstance(value, ResizeTimeline):
        return summary(value)
    if isinstance(value, tuple):
        return [_short(item) for item in cast(tuple[Any, ...], value)[:_MANY]]
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value)
        return _few({key: _short(items[key]) for key in islice(items, _MANY)}, items)
    if isinstance(value, str) and len(value) > _LONG:
        return f"{value[:_LONG]}..."
    return value


def in_the_past(at_s: float, now_s: float) -> str:
    """Like "2001-01-01 00:00:00 UTC is 24.9 years in the past"."""
    past_s = now_s - at_s
    units = ((31_557_600.0, "years"), (86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
    unit_s, unit = next((each for each in units if past_s >= 2 * each[0]), (1.0, "s"))
    when = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{when} is {past_s / unit_s:{'.0f' if unit == 's' else '.1f'}} {unit} in the past"
