"""Overhead models: how long a job whose set of GPUs changes stands still, by name."""

import json
import re
from pathlib import Path
from typing import Any

from shared.errors import BadSettings
from shared.messages.limits import MAX_GPUS
from shared.scheduling.resize_cost import ResizeCost
from simulator.workload.errors import refusal
from simulator.workload.table import parsed

CHOICES = "none, a number of seconds, reference, or measured FILE"
REFERENCE_BASE_S, REFERENCE_LARGE_BASE_S, REFERENCE_LARGE_GPUS = 2.0, 7.0, 256
REFERENCE_PER_DOUBLING_S = 2.0
MAX_COST_S = 1e6


def overhead_model(name: str, total_gpus: int) -> ResizeCost:
    """name: none | SECONDS | reference | measured FILE (or measured:FILE); total_gpus: of the cluster.

    A measured file is JSON, {"seconds_by_num_gpus": {"1": 0.02, "2": 0.03}}; between and beyond its numbers of
    GPUs, the next lower one holds. Raises BadSettings for an unknown name, BadInput for a bad file.
    """
    if name == "none":
        return ResizeCost()
    if name == "reference":
        return reference_cost(total_gpus)
    if measured := re.fullmatch(r"measured[ :](.+)", name):
        return _measured_cost(Path(measured[1].strip()))
    seconds = parsed(name)
    if seconds is None or not 0 <= seconds <= MAX_COST_S:
        raise BadSettings((f"overhead {name!r} must be {CHOICES} (0 to {MAX_COST_S:g} s)",))
    return ResizeCost.flat(seconds)


def reference_cost(total_gpus: int) -> ResizeCost:
    """base + 2 (log2 n + 1) seconds on n GPUs, base 2 s, or 7 s in a cluster of 256 GPUs or more.

    Source: the cost that the authors' simulator of ElasticFlow charges a job that moves to a new set of GPUs.
    """
    base_s = REFERENCE_LARGE_BASE_S if total_gpus >= REFERENCE_LARGE_GPUS else REFERENCE_BASE_S
    bits = range(max(total_gpus, 1).bit_length())
    return ResizeCost(
        tuple(1 << bit for bit in bits),
        tuple(base_s + REFERENCE_PER_DOUBLING_S * (bit + 1) for bit in bits),
    )


def _measured_cost(file: Path) -> ResizeCost:
    expected = 'expected {"seconds_by_num_gpus": {"1": 0.02, "2": 0.03, ...}}'
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise refusal(file, f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or JSON beyond reason
        raise refusal(file, f"is no JSON ({error}); {expected}") from error
    seconds = content.get("seconds_by_num_gpus") if isinstance(content, dict) else None
    if not isinstance(seconds, dict) or not seconds:
        raise refusal(file, expected)
    costs = sorted(_measurement(file, num_gpus, cost_s) for num_gpus, cost_s in seconds.items())
    num_gpus_C, seconds_C = zip(*costs, strict=True)
    if len(set(num_gpus_C)) < len(num_gpus_C):
        raise refusal(file, f"the same number of GPUs twice; {expected}")
    return ResizeCost(num_gpus_C, seconds_C)


def _measurement(file: Path, num_gpus: str, cost_s: Any) -> tuple[int, float]:
    count = parsed(num_gpus)
    if count is None or not count.is_integer() or not 1 <= count <= MAX_GPUS:
        raise refusal(file, f"must be a whole number, 1 to {MAX_GPUS}", column="num_gpus", value=num_gpus)
    is_number = isinstance(cost_s, int | float) and not isinstance(cost_s, bool)
    if not is_number or not 0 <= cost_s <= MAX_COST_S:
        reason = f"must be 0 to {MAX_COST_S:g} seconds, on {num_gpus} GPUs"
        raise refusal(file, reason, column="seconds", value=json.dumps(cost_s))
    return int(count), float(cost_s)
