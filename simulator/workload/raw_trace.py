"""Raw traces have the submission, GPUs and duration of each job; the rest is drawn at random here.

Source: ElasticFlow, section 6.1: a model and batch size from those with a throughput table, the iterations that the
duration allows at that throughput, and a deadline of lambda times the duration, lambda uniform in [0.5, 1.5].
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.limits import MAX_GPUS, MAX_TIME_S
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.csv_table import Row
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import TraceJob, job_class_of

TIGHTNESS = (0.5, 1.5)  # the range of lambda
MIN_DURATION_S = 1e-3
MAX_DURATION_S = 1e9  # thirty years; more is a mistake in units


@dataclass(frozen=True, slots=True)
class Setting:
    """A model at a global batch size."""

    model_name: str
    global_batch_size: int
    curve: ScalingCurve
    curve_by_type: Mapping[str, ScalingCurve]  # empty for a pool of one type


def settings_at(throughputs: Throughputs, num_gpus: int) -> tuple[Setting, ...]:
    """All settings that run on num_gpus GPUs, by model name and batch size."""
    return tuple(
        Setting(model, batch_size, curve, throughputs.curve_by_type(model, batch_size))
        for model in throughputs.models
        for batch_size in throughputs.batch_sizes(model)
        if (curve := throughputs.curve(model, batch_size)).throughput(num_gpus) > 0
    )


def completed_job(
    *,
    job_id: str,
    submitted_at_s: float,
    duration_s: float,
    num_gpus: int,
    setting: Setting,
    deadline_s: float | None,
    job_class: JobClass = JobClass.SLO,
) -> TraceJob:
    """A job of duration_s seconds on num_gpus GPUs, of one iteration at least."""
    iterations = int(duration_s * setting.curve.throughput(num_gpus))
    return TraceJob(
        job_id=job_id,
        submitted_at_s=submitted_at_s,
        num_iterations=max(iterations, 1),
        model_name=setting.model_name,
        global_batch_size=setting.global_batch_size,
        deadline_s=deadline_s,
        job_class=job_class,
        num_gpus=num_gpus,
        duration_s=duration_s,
        curve=setting.curve,
        measured_by_type=setting.curve_by_type,
    )


class RawReader:
    """Makes jobs of raw rows, one draw after another: the same rows and seed give the same jobs.

    A number of GPUs is rounded up to a power of two.
    """

    def __init__(self, throughputs: Throughputs, chance: np.random.Generator) -> None:
        self._throughputs, self._chance = throughputs, chance
        self._settings: dict[int, tuple[Setting, ...]] = {}  # by number of GPUs

    def __call__(self, row: Row, job_id: str) -> TraceJob:
        submitted_at_s = row.number("submission_time", 0, MAX_TIME_S)
        duration_s = row.number("duration", MIN_DURATION_S, MAX_DURATION_S)
        num_gpus = 1 << (row.whole("num_gpu", 1, MAX_GPUS) - 1).bit_length()
        if num_gpus not in self._settings:
            self._settings[num_gpus] = settings_at(self._throughputs, num_gpus)
        settings = self._settings[num_gpus]
        if not settings:
            raise row.bad_input("num_gpu", f"no model of {self._throughputs.source} runs on {num_gpus} GPUs")
        setting, job_class = settings[self._chance.integers(len(settings))], job_class_of(row)
        deadline_s = submitted_at_s + duration_s * self._chance.uniform(*TIGHTNESS)
        return completed_job(
            job_id=job_id,
            submitted_at_s=submitted_at_s,
            duration_s=duration_s,
            num_gpus=num_gpus,
            setting=setting,
            deadline_s=deadline_s if job_class.has_deadline else None,
            job_class=job_class,
        )
