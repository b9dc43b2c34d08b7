"""Leases for deadlines: as many rigid jobs as possible are packed into leases before their deadlines.

Jobs whose deadline cannot be kept lose their class, and run with the best-effort jobs on what is left, the
shortest first. Where the paper solves a mixed-integer program for each lease, here jobs are packed by deadline, and
where one does not fit the largest of those packed is given up (Moore and Hodgson's rule, exact for one machine).
Source: Chronus (Gao et al., SoCC 2021), section 4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.baselines.baseline import (
    AdmitsAll,
    BaselineJob,
    Shares,
    at_lease_end,
    by_deadline,
    leased_gangs,
)

_Packed = tuple[int, NDArray[np.intp]]  # a gang, and its leases


@dataclass(frozen=True, slots=True)
class Chronus(AdmitsAll):
    """Axis: T = leases from now on."""

    name: str = "chronus"
    lease_s: float = 240.0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        if at_lease_end(now_s, self.lease_s):
            leased = self._leased_now(jobs, num_gpus, now_s)
            order = sorted(jobs, key=lambda job: (job.job_id not in leased, *_shortest_first(job)))
        else:
            hopeful = {job.job_id for job in jobs if self._window(job, now_s) is not None}
            order = sorted(jobs, key=lambda job: (job.job_id not in hopeful, *_urgent(job, hopeful)))
        return leased_gangs(order, num_gpus, now_s, self.lease_s)

    def _leased_now(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> set[str]:
        """The jobs with deadlines that hold the lease that begins now."""
        dated = sorted((job for job in jobs if job.due_s < math.inf), key=by_deadline)
        windows = {job.job_id: window for job in dated if (window := self._window(job, now_s)) is not None}
        free_T = np.full(sum(needed for needed, _ in windows.values()), num_gpus)  # enough, if all took turns
        packed: dict[str, _Packed] = {}
        for job in dated:
            if job.job_id not in windows:
                continue
            needed, last = windows[job.job_id]
            leases = _first(free_T[:last], job.gang, needed)
            if leases is None:
                leases = _instead_of_the_largest(packed, free_T, job.gang, needed, last)
            if leases is not None:
                free_T[leases] -= job.gang
                packed[job.job_id] = job.gang, leases
        return {job_id for job_id, (_, leases) in packed.items() if leases[0] == 0}

    def _window(self, job: BaselineJob, now_s: float) -> tuple[int, int] | None:
        """Leases that the job needs, and those that it can use before its deadline; None if they are too few."""
        needed_s = job.seconds_left(job.gang, now_s)
        needed = max(math.ceil(needed_s / self.lease_s), 1)
        last_s = needed_s - (needed - 1) * self.lease_s  # of its last lease it needs only this
        if job.due_s == math.inf or now_s + needed_s > job.due_s:
            return None
        return needed, max(math.floor((job.due_s - now_s - last_s) / self.lease_s) + 1, needed)


def _first(free_T: NDArray[np.int_], gang: int, needed: int) -> NDArray[np.intp] | None:
    """The first leases with room for the gang, if there are enough."""
    leases = np.flatnonzero(free_T >= gang)[:needed]
    return leases if len(leases) == needed else None


def _instead_of_the_largest(
    packed: dict[str, _Packed], free_T: NDArray[np.int_], gang: int, needed: int, last: int
) -> NDArray[np.intp] | None:
    """Leases for a job in place of the largest one packed, which is given up; None if that is smaller or no help."""
    largest = max(packed, key=lambda job_id: (_size(packed[job_id]), job_id), default=None)
    if largest is None or _size(packed[largest]) <= gang * needed:
        return None
    its_gang, its_leases = packed[largest]
    free_T[its_leases] += its_gang
    leases = _first(free_T[:last], gang, needed)
    if leases is None:
        free_T[its_leases] -= its_gang
    else:
        del packed[largest]
    return leases


def _size(packed: _Packed) -> int:
    return packed[0] * len(packed[1])


def _shortest_first(job: BaselineJob) -> tuple[float, str]:
    return job.remaining_iterations / job.curve.throughput(job.gang), job.job_id


def _urgent(job: BaselineJob, hopeful: set[str]) -> tuple[float, str]:
    """Between two leases, for GPUs that fell free: the earliest deadline that can be kept, then the shortest job."""
    return (job.due_s, job.job_id) if job.job_id in hopeful else _shortest_first(job)
