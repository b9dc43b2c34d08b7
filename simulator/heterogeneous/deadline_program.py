"""Gavel's deadline-aware policy: the most throughput for its price, while each job keeps the pace of its deadline.

The objective adds up, over all shares, throughput by price; each job's best configuration counts as 1. A job with
L iterations left and D seconds until its deadline needs L / D iterations/s. Gavel gives up all deadlines where they
cannot be met together. Here a job may miss a part of its pace at a penalty, so that the others keep theirs.
Source: Narayanan et al., section 4.2, and its published implementation.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.scheduling.compiled.compile import Floats
from elasticflow.shared.scheduling.proofs.linear_program import Entries, joined
from elasticflow.simulator.heterogeneous.active_job import ActiveJob, Policy, Shares
from elasticflow.simulator.heterogeneous.share_program import ShareProgram, share_program
from elasticflow.simulator.workload.typed_pool import TypedPool

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
