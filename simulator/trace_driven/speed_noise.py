"""Jobs that are not as fast as their curves say: each by a factor of its own, at any number of GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shared.errors import BadSettings
from simulator.workload.jobs import Workload


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
