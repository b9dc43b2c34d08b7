"""What all of Gavel's linear programs have in common: shares of time, and the rows that keep them possible.

Variables: for each active job and each of its configurations, the part of the time in which the job holds it. Rows:
no job runs for more than all of the time; all jobs together hold no more GPUs of a type than the pool has. A policy
appends its own variables and rows, and its objective.
Axes: J = active jobs; I = GPU types; V = share variables, one for each (job, configuration); E = nonzero entries.
Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elasticflow.shared.scheduling.compiled.compile import Floats, Integers
from elasticflow.shared.scheduling.proofs.linear_program import Entries, joined, minimise
from elasticflow.simulator.heterogeneous.active_job import ActiveJob, Shares
from elasticflow.simulator.workload.typed_pool import TypedPool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShareProgram:
    """normalized_V: throughput in equal shares (configurations.py). num_gpus_VI: GPUs of the configuration."""

    job_V: Integers
    num_gpus_VI: Integers
    throughput_V: Floats
    normalized_V: Floats
    pool: TypedPool
    num_jobs: int

    @property
    def num_shares(self) -> int:
        return len(self.job_V)

    def of_each_job(self, value_V: Floats, row_of_job_J: Integers) -> Entries:
        """For each job one row, with `value_V` of its shares; row -1: none."""
        row_V = row_of_job_J[self.job_V]
        variable_E = np.flatnonzero(row_V >= 0)
        return Entries(row_V[variable_E], variable_E, value_V[variable_E])

    def solve(
        self, value_V: Floats, added_value: Floats, added_most: Floats, added: Entries, least_R: Floats
    ) -> Floats | None:
        """All variables at the highest value: shares first, then the added ones. None if HiGHS gives up.

        added: rows of the policy, counted from 0, each of which is at least `least_R`.
        """
        num_own = self.num_jobs + len(self.pool.num_gpus)
        type_I = np.arange(len(self.pool.num_gpus))
        variable_E, held_E = np.nonzero(self.num_gpus_VI)
        optimum = minimise(
            -np.append(value_V, added_value),
            np.append(np.ones(self.num_shares), added_most),
            joined(
                self.of_each_job(np.ones(self.num_shares), np.arange(self.num_jobs)),
                Entries(self.num_jobs + type_I[held_E], variable_E, self.num_gpus_VI[variable_E, held_E].astype(float)),
                Entries(num_own + added.row_E, added.variable_E, added.value_E),
            ),
            np.append(np.full(num_own, -np.inf), least_R),
            np.concatenate(
                [np.ones(self.num_jobs), np.array(self.pool.num_gpus, float), np.full(len(least_R), np.inf)]
            ),
        )
        return None if optimum is None else optimum.value_V

    def by_job(self, value_V: Floats) -> Shares:
        """The shares of each job, without rounding errors below 0 or above 1."""
        ends_J = np.cumsum(np.bincount(self.job_V, minlength=self.num_jobs))
        return np.split(np.clip(value_V[: self.num_shares], 0.0, 1.0), ends_J[:-1])


def share_program(jobs: Sequence[ActiveJob], pool: TypedPool) -> ShareProgram:
    """The variables of these jobs, at least one, in their order."""
    choices = [job.configurations for job in jobs]
    return ShareProgram(
        job_V=np.repeat(np.arange(len(jobs)), [len(choice.throughput_C) for choice in choices]),
        num_gpus_VI=np.concatenate([choice.num_gpus_CI for choice in choices]),
        throughput_V=np.concatenate([choice.throughput_C for choice in choices]),
        normalized_V=np.concatenate([choice.normalized_C for choice in choices]),
        pool=pool,
        num_jobs=len(jobs),
    )
