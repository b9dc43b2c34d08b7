"""Jobs that are not as fast as their curves say: each by a factor of its own, at any number of GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from shared.errors import BadSettings
from shared.scheduling.scaling_curve import ScalingCurve
from simulator.workload.jobs import TraceJob, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedNoise:
    """The logarithm of the factor is normal around 0; sigma: its spread."""

    seed: int
    sigma: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma <= 1:
            raise BadSettings((f"speed noise must be above 0 and at most 1, not {self.sigma:g}",))

    def speeds(self, workload: Workload) -> Mapping[str, float]:
        """What is true over what the curve says, by job."""
        chance = np.random.default_rng(self.seed)
        factors = chance.lognormal(0.0, self.sigma, len(workload.jobs))
        return {job.job_id: float(factor) for job, factor in zip(workload.jobs, factors, strict=True)}

    def revealed(self, workload: Workload) -> Workload:
        """The same jobs, with the curves that are true: of whoever foresees everything."""
        speeds = self.speeds(workload)
        jobs = (_at_speed(job, speeds[job.job_id]) for job in workload.jobs)
        return Workload.of(workload.name, jobs, workload.skipped)


def _at_speed(job: TraceJob, speed: float) -> TraceJob:
    rates = tuple(speed * rate for rate in job.curve.iterations_per_s_L)
    return replace(job, curve=ScalingCurve(job.curve.num_gpus_L, rates))
