"""An active job and what it has received; what a policy sees of it, and what a policy is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from elasticflow.shared.scheduling.compiled.compile import Floats
from elasticflow.simulator.heterogeneous.configurations import Configurations
from elasticflow.simulator.heterogeneous.job_arrivals import TypedJob
from elasticflow.simulator.workload.typed_pool import TypedPool


@dataclass(slots=True, eq=False)
class ActiveJob:
    """received_rounds_C: in each configuration. num_rounds: since the job is active."""

    job: TypedJob
    configurations: Configurations
    left_iterations: float
    num_rounds: int = 0
    received_rounds_C: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.received_rounds_C = np.zeros(len(self.configurations.throughput_C))

    @property
    def attained_service(self) -> float:
        """Iterations done, in seconds of one average GPU of the pool."""
        return (self.job.num_iterations - self.left_iterations) / self.configurations.equal_throughput


# For each active job, in the given order, the part of the time in [0, 1] in which it should hold each configuration.
# Arguments: the active jobs, the pool, now in seconds.
Shares = Sequence[Floats]
Policy = Callable[[Sequence[ActiveJob], TypedPool, float], Shares]
