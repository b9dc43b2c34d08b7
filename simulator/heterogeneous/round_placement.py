"""One round: the shares of the policy become whole GPUs.

As in Gavel, the pairs of job and configuration are served in order of priority, which is the share over the part of its
rounds that the job has received in this configuration. What is left goes to jobs that wait, on the fewest GPUs, and
then to jobs that run faster with it; those with the least attained service are first.
Source: Narayanan et al., section 5.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.scheduling.compiled.compile import Integers
from elasticflow.simulator.heterogeneous.active_job import ActiveJob, Shares
from elasticflow.simulator.workload.typed_pool import TypedPool

WAITING = -1
_LEAST_SHARE = 1e-6  # below it, rounding errors of the solver


def place_round(jobs: Sequence[ActiveJob], shares: Shares, pool: TypedPool) -> list[int]:
    """The index of each job's configuration in this round, or WAITING. Jobs are in order of arrival."""
    free_I = pool.num_gpus_I
    placed = [WAITING] * len(jobs)
    for _, _, j, c in sorted(_candidates(jobs, shares)):
        needed_I = jobs[j].configurations.num_gpus_CI[c]
        if placed[j] == WAITING and (needed_I <= free_I).all():
            placed[j] = c
            free_I -= needed_I
    by_service = sorted(range(len(jobs)), key=lambda j: (jobs[j].attained_service, j))
    for j in by_service:
        if placed[j] == WAITING:
            placed[j] = _fewest_gpus(jobs[j], free_I)
            free_I -= _held(jobs[j], placed[j])
    for j in by_service:
        if placed[j] != WAITING:
            available_I = free_I + _held(jobs[j], placed[j])
            placed[j] = _fastest(jobs[j], available_I)
            free_I = available_I - _held(jobs[j], placed[j])
    return placed


def _candidates(jobs: Sequence[ActiveJob], shares: Shares) -> list[tuple[float, float, int, int]]:
    """(-priority, -share, job, configuration) of each positive share; a share that was never served is first."""
    candidates = list[tuple[float, float, int, int]]()
    for j, (job, share_C) in enumerate(zip(jobs, shares, strict=True)):
        for c in np.flatnonzero(share_C > _LEAST_SHARE):
            share, received = float(share_C[c]), float(job.received_rounds_C[c])
            priority = share * job.num_rounds / received if received else np.inf
            candidates.append((-priority, -share, j, int(c)))
    return candidates


def _held(job: ActiveJob, configuration: int) -> Integers:
    num_gpus_CI = job.configurations.num_gpus_CI
    return num_gpus_CI[configuration] if configuration != WAITING else np.zeros_like(num_gpus_CI[0])


def _fitting(job: ActiveJob, free_I: Integers) -> NDArray[np.bool_]:
    return (job.configurations.num_gpus_CI - free_I).max(axis=1) <= 0


def _fewest_gpus(job: ActiveJob, free_I: Integers) -> int:
    """The fastest of the configurations with the fewest GPUs among those that fit, or WAITING."""
    fitting_C = np.flatnonzero(_fitting(job, free_I))
    choices = job.configurations
    return int(
        min(fitting_C, key=lambda c: (choices.num_gpus_CI[c].sum(), -choices.throughput_C[c], c), default=WAITING)
    )


def _fastest(job: ActiveJob, available_I: Integers) -> int:
    """The fastest configuration that fits; one does, since the job is placed."""
    return int(np.where(_fitting(job, available_I), job.configurations.throughput_C, 0.0).argmax())
