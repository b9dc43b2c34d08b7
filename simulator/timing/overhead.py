"""Overhead models, by name: how long a job stops when its set of GPUs changes."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.limits import MAX_GPUS
from elasticflow.shared.messages.syntax_problems import parsed_json
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.timing.training_time import SwitchTime, TrainingTime
from elasticflow.simulator.workload.csv_table import bad_input, parsed
from elasticflow.simulator.workload.workload import TraceJob

CHOICES = "none, a number of seconds, reference, or measured FILE"
REFERENCE_BASE_S, REFERENCE_LARGE_BASE_S, REFERENCE_LARGE_GPUS = 2.0, 7.0, 256
REFERENCE_PER_DOUBLING_S = 2.0
MAX_COST_S = 1e6
COEFFICIENTS = ("seconds", "seconds_per_byte", "seconds_per_doubling")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopModel:
    """seconds + seconds_per_byte * bytes of the job's state + seconds_per_doubling * log2(GPUs), as benchmarks/engine
    fits it to measured stops."""

    seconds: float
    seconds_per_byte: float
    seconds_per_doubling: float

    def cost(self, state_bytes: int, num_gpus_C: tuple[int, ...]) -> ResizeCost:
        """The cost at these numbers of GPUs."""
        moved_s = self.seconds + self.seconds_per_byte * state_bytes
        return ResizeCost(num_gpus_C, tuple(moved_s + self.seconds_per_doubling * math.log2(n) for n in num_gpus_C))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """by_num_gpus: the cost of a job with a state of unknown size. model: the cost from a known size.
    num_gpus_C: ascending numbers of GPUs at which `model` is evaluated.
    changes: times of each kind of change; policies plan with by_num_gpus."""

    by_num_gpus: ResizeCost
    changes: TrainingTime | None = None
    model: StopModel | None = None
    num_gpus_C: tuple[int, ...] = (1,)

    def of(self, job: TraceJob) -> ResizeCost:
        if self.model is None or not job.state_bytes:
            return self.by_num_gpus
        return self.model.cost(job.state_bytes, self.num_gpus_C)

    def by_job(self, jobs: Iterable[TraceJob]) -> Mapping[str, ResizeCost]:
        """The costs of the jobs whose state has a known size."""
        return {job.job_id: cost for job in jobs if (cost := self.of(job)) is not self.by_num_gpus}

    def most(self, jobs: Iterable[TraceJob]) -> ResizeCost:
        """The most that any job pays: policies plan with one cost for all jobs."""
        return self._of_all(jobs, max)

    def least(self, jobs: Iterable[TraceJob]) -> ResizeCost:
        """The least that any job pays once, for bounds."""
        return self.changes.first_start if self.changes is not None else self._of_all(jobs, min)

    def _of_all(self, jobs: Iterable[TraceJob], chosen: Callable[[Iterable[float]], float]) -> ResizeCost:
        costs = {self.of(job) for job in jobs}
        if len(costs) <= 1:
            return next(iter(costs), self.by_num_gpus)
        num_gpus_C = tuple(sorted({num_gpus for cost in costs for num_gpus in cost.num_gpus_C}))
        return ResizeCost(num_gpus_C, tuple(chosen(cost.seconds(n) for cost in costs) for n in num_gpus_C))


def overhead_model(name: str, total_gpus: int) -> Overhead:
    """name: none | SECONDS | reference | measured FILE (or measured:FILE); total_gpus: of the cluster.

    A measured file is JSON, {"seconds_by_num_gpus": {"1": 0.02, "2": 0.03}}; between and beyond its
    numbers of GPUs, the next lower one applies. A "stop_model" beside it is the cost of jobs with known `state_bytes`.
    With "changes" beside it jobs switch without a stop; it has "first_start", "restart", "suspend", and "prepare" and
    "stop" of "grow" and "shrink", each as seconds_by_num_gpus.
    Raises BadSettings for an unknown name, BadInput for a bad file.
    """
    if measured := re.fullmatch(r"measured[ :](.+)", name):
        return _measured(Path(measured[1].strip()), total_gpus)
    return Overhead(by_num_gpus=_cost_named(name, total_gpus))


def _cost_named(name: str, total_gpus: int) -> ResizeCost:
    if name == "none":
        return ResizeCost()
    if name == "reference":
        return reference_cost(total_gpus)
    seconds = parsed(name)
    if seconds is None or not 0 <= seconds <= MAX_COST_S:
        raise BadSettings((f"overhead {name!r} must be {CHOICES} (0 to {MAX_COST_S:g} s)",))
    return ResizeCost.flat(seconds)


def reference_cost(total_gpus: int) -> ResizeCost:
    """base + 2 (log2 n + 1) seconds on n GPUs, base 2 s, or 7 s in a cluster of 256 GPUs or more.

    Source: the cost that the authors' simulator of ElasticFlow charges for a new set of GPUs.
    """
    base_s = REFERENCE_LARGE_BASE_S if total_gpus >= REFERENCE_LARGE_GPUS else REFERENCE_BASE_S
    num_gpus_C = _doublings(total_gpus)
    return ResizeCost(
        num_gpus_C, tuple(base_s + REFERENCE_PER_DOUBLING_S * (bit + 1) for bit in range(len(num_gpus_C)))
    )


def _doublings(total_gpus: int) -> tuple[int, ...]:
    return tuple(1 << bit for bit in range(max(total_gpus, 1).bit_length()))


def _measured(file: Path, total_gpus: int) -> Overhead:
    expected = 'expected {"seconds_by_num_gpus": {"1": 0.02, "2": 0.03, ...}}'
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise bad_input(file, f"is not a text in UTF-8; {expected}") from error
    except OSError as error:
        raise bad_input(file, f"cannot be read: {error.strerror or error}") from error
    try:
        content = parsed_json(text)
    except ValueError as error:
        raise bad_input(file, f"is not JSON: {error}; {expected}") from error
    if not isinstance(content, dict):
        raise bad_input(file, expected)
    if {"changes", "stop_model"} <= content.keys():
        raise bad_input(file, "has both changes and a stop_model; leave out one of them")
    return Overhead(
        by_num_gpus=_cost(file, content.get("seconds_by_num_gpus"), expected),
        changes=_changes(file, content["changes"]) if "changes" in content else None,
        model=_stop_model(file, content["stop_model"]) if "stop_model" in content else None,
        num_gpus_C=_doublings(total_gpus),
    )


def _cost(file: Path, seconds: Any, expected: str) -> ResizeCost:
    """The resize cost from seconds by number of GPUs."""
    if not isinstance(seconds, dict) or not seconds:
        raise bad_input(file, expected)
    costs = sorted(_measurement(file, num_gpus, cost_s) for num_gpus, cost_s in seconds.items())
    num_gpus_C, seconds_C = zip(*costs, strict=True)
    if len(set(num_gpus_C)) < len(num_gpus_C):
        raise bad_input(file, f"the same number of GPUs twice; {expected}")
    return ResizeCost(num_gpus_C, seconds_C)


def _changes(file: Path, content: Any) -> TrainingTime:
    def cost(*path: str) -> ResizeCost:
        found = content
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return _cost(file, found, f"changes: expected seconds by number of GPUs as {'.'.join(path)}")

    switches = {name: SwitchTime(prepare=cost(name, "prepare"), stop=cost(name, "stop")) for name in ("grow", "shrink")}
    return TrainingTime(first_start=cost("first_start"), restart=cost("restart"), suspend=cost("suspend"), **switches)


def _stop_model(file: Path, content: Any) -> StopModel:
    if not isinstance(content, dict):
        raise bad_input(file, f"stop_model: expected {', '.join(COEFFICIENTS)}")
    return StopModel(**{name: _seconds(file, content.get(name), "stop_model", name) for name in COEFFICIENTS})


def _measurement(file: Path, num_gpus: str, cost_s: Any) -> tuple[int, float]:
    count = parsed(num_gpus)
    if count is None or not count.is_integer() or not 1 <= count <= MAX_GPUS:
        raise bad_input(file, f"must be a whole number, 1 to {MAX_GPUS}", column="num_gpus", value=num_gpus)
    return int(count), _seconds(file, cost_s, "seconds", f"on {num_gpus} GPUs")


def _seconds(file: Path, seconds: Any, column: str, which: str) -> float:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MAX_COST_S:
        reason = f"must be 0 to {MAX_COST_S:g} seconds, {which}"
        raise bad_input(file, reason, column=column, value=json.dumps(seconds))
    return float(seconds)
