"""Gavel's linear programs: shares of time for least attained service, and for deadlines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.heterogeneous.rounds import ActiveJob, Policy, Shares
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.scheduling.compiled_loops import Floats, Integers
from elasticflow.shared.scheduling.proofs.linear_program import Entries, joined, minimise
from elasticflow.simulator.workload.workload import TypedPool


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
        """One row for each job, with `value_V` of its shares; row -1: none."""
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


# --- deadline program ----------------------------------------------------------------------------------
# Gavel's deadline-aware policy: the most throughput for its price, while each job keeps the pace of its deadline.
#
# The objective adds up, over all shares, throughput by price; each job's best configuration counts as 1. A job with L
# iterations left and D seconds until its deadline needs L / D iterations/s. Gavel gives up all deadlines where they
# cannot be met together. Here a job may miss a part of its pace at a penalty, so that the others keep theirs. Source:
# Narayanan et al., section 4.2, and its published implementation.

MISSED_PACE_PENALTY = 1e3  # for the whole pace of one job; above what its GPUs are worth to the others


def deadline_policy(price_per_hour: Mapping[str, float]) -> Policy:
    """The policy for these prices of one GPU of each type; the currency has no effect.

    The policy raises BadSettings if a type of the pool has no price.
    """

    def deadline_shares(jobs: Sequence[ActiveJob], pool: TypedPool, now_s: float) -> Shares:
        if missing := [name for name in pool.gpu_types if name not in price_per_hour]:
            raise BadSettings((f"GPU type {missing[0]!r} has no price; give one for each type of the pool {pool}",))
        program = share_program(jobs, pool)
        price_V = program.num_gpus_VI @ np.array([price_per_hour[name] for name in pool.gpu_types])
        pace_J = np.array([_pace(job, now_s) for job in jobs])
        values = _solve(program, _by_best(program, program.throughput_V / price_V), pace_J)
        assert values is not None  # no shares at all are a solution: every job may miss its pace
        return program.by_job(values)

    return deadline_shares


def _pace(job: ActiveJob, now_s: float) -> float:
    """Iterations/s that the deadline needs; 0 if there is none, or if it is past or out of reach."""
    left_s = job.job.deadline_s - now_s
    fastest = float(job.configurations.throughput_C.max())
    return job.left_iterations / left_s if job.left_iterations <= fastest * left_s else 0.0


def _by_best(program: ShareProgram, value_V: Floats) -> Floats:
    """The value of each share over the highest one of its job."""
    best_J = np.zeros(program.num_jobs)
    np.maximum.at(best_J, program.job_V, value_V)
    return value_V / best_J[program.job_V]


def _solve(program: ShareProgram, value_V: Floats, pace_J: Floats) -> Floats | None:
    """Each job with a pace has a row and a variable, both in parts of the pace: done + missed >= 1."""
    with_pace = np.flatnonzero(pace_J)
    row_J = np.full(program.num_jobs, -1)
    row_J[with_pace] = np.arange(len(with_pace))
    part_V = program.throughput_V / np.where(pace_J > 0, pace_J, 1.0)[program.job_V]
    each_R, one_R = row_J[with_pace], np.ones(len(with_pace))
    return program.solve(
        value_V,
        -MISSED_PACE_PENALTY * one_R,
        one_R,
        joined(program.of_each_job(part_V, row_J), Entries(each_R, program.num_shares + each_R, one_R)),
        one_R,
    )


# --- las program ---------------------------------------------------------------------------------------
# Gavel's least attained service: the shares that maximize the least normalized throughput of the active jobs.
#
# The throughput of a job is normalized by what an equal share of the pool gives it. The program has one more
# variable, the least normalized throughput, and for each job a row that keeps it below the job's own. Source:
# Narayanan et al., section 4.1. Mixes of types are configurations like all others (VirtualFlow, section 6.5.2).

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
