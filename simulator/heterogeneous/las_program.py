"""Gavel's least attained service: the shares that maximize the least normalized throughput of the active jobs.

The throughput of a job is normalized by what an equal share of the pool gives it. The program has one more variable,
the least normalized throughput, and for each job a row that keeps it below the job's own.
Source: Narayanan et al., section 4.1. Mixes of types are configurations like all others (VirtualFlow, section 6.5.2).
"""

from collections.abc import Sequence

import numpy as np

from elasticflow.shared.scheduling.proofs.linear_program import Entries, joined
from elasticflow.simulator.heterogeneous.active_job import ActiveJob, Shares
from elasticflow.simulator.heterogeneous.share_program import share_program
from elasticflow.simulator.workload.typed_pool import TypedPool

# The maximum of the least alone may leave GPUs unused, or not. This weight of the mean decides it.
MEAN_WEIGHT = 1e-4


def las_shares(jobs: Sequence[ActiveJob], pool: TypedPool, now_s: float) -> Shares:
    """Shares of the least attained service; `now_s` has no effect."""
    program = share_program(jobs, pool)
    each_J = np.arange(program.num_jobs)
    least_J = np.full(program.num_jobs, program.num_shares)  # the variable after the shares
    values = program.solve(
        program.normalized_V * MEAN_WEIGHT / program.num_jobs,
        np.ones(1),
        np.full(1, np.inf),
        joined(
            program.of_each_job(program.normalized_V, each_J),
            Entries(each_J, least_J, -np.ones(program.num_jobs)),
        ),
        np.zeros(program.num_jobs),
    )
    assert values is not None  # no shares at all are a solution
    return program.by_job(values)
