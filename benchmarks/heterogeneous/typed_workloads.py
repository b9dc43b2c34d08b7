"""Workloads for pools of several GPU types whose speeds have one ratio."""

from collections.abc import Mapping
from dataclasses import replace

from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.workload import TraceJob, Workload


def on_types(workload: Workload, speed_by_type: Mapping[str, float]) -> Workload:
    """The same jobs with a curve on each type: their own times the speed of the type, which is 1 for the first."""
    return replace(workload, jobs=tuple(_on_types(job, speed_by_type) for job in workload.jobs))


def _on_types(job: TraceJob, speed_by_type: Mapping[str, float]) -> TraceJob:
    curve = job.measured or job.curve
    return replace(job, measured_by_type={name: _faster(curve, speed) for name, speed in speed_by_type.items()})


def _faster(curve: ScalingCurve, speed: float) -> ScalingCurve:
    return ScalingCurve(curve.num_gpus_L, tuple(rate * speed for rate in curve.iterations_per_s_L))
