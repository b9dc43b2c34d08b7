"""Rigid gangs on leases: Gandiva, Themis and Chronus. Leases of all jobs end together; a job keeps its GPUs until then.

Gandiva and Themis ignore deadlines.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticflow.simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, by_deadline, gangs

_LEAST_LEFT_S = 1e-9  # of a job in its last instant, which needs a share too
_BISECTIONS = 40
LEASE_TOLERANCE_S = 1.0  # a scheduler that wakes a little after the end of a lease is at that end
_Packed = tuple[int, NDArray[np.intp]]  # a gang, and its leases


def at_lease_end(now_s: float, lease_s: float) -> bool:
    """Leases of all jobs end together, at multiples of their length: a large gang needs many GPUs at once."""
    return now_s % lease_s < LEASE_TOLERANCE_S


def next_lease_end_s(now_s: float, lease_s: float) -> float:
    return (now_s // lease_s + 1.0) * lease_s


def held_until_the_next(jobs: Sequence[BaselineJob], now_s: float, lease_s: float) -> Shares:
    """Jobs keep their GPUs and no job starts, until the next lease begins."""
    held = {job.job_id: job.current_num_gpus for job in jobs if job.current_num_gpus}
    until_s = next_lease_end_s(now_s, lease_s) if len(held) < len(jobs) else math.inf
    return Shares(num_gpus_by_job=held, valid_until_s=until_s)


def leased_gangs(jobs_in_order: Sequence[BaselineJob], num_gpus: int, now_s: float, lease_s: float) -> Shares:
    """Gangs for a lease, in this order, but a job whose lease has not ended keeps its GPUs.

    While no job waits there is nothing to decide at the end of a lease.
    """

    def leased(job: BaselineJob) -> bool:
        ended = at_lease_end(now_s, lease_s) and now_s - job.held_since_s >= LEASE_TOLERANCE_S
        return job.current_num_gpus > 0 and not ended

    shares = gangs(sorted(jobs_in_order, key=lambda job: not leased(job)), num_gpus)
    waiting = len(shares) < len(jobs_in_order)
    return Shares(num_gpus_by_job=shares, valid_until_s=next_lease_end_s(now_s, lease_s) if waiting else math.inf)


@dataclass(frozen=True, slots=True)
class Gandiva(AdmitsAll):
    """Time-slicing: the gang that has waited longest runs first.

    slice_s: a minute in the paper, where a switch costs less than a second; longer here, where it costs several.
    Without the paper's packing of several jobs on one GPU, which no throughput table here describes.
    Source: Gandiva (Xiao et al., OSDI 2018), section 4; ElasticFlow, section 6.1.
    """

    name: str = "gandiva"
    slice_s: float = 300.0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        return leased_gangs(sorted(jobs, key=_longest_waiting_first), num_gpus, now_s, self.slice_s)


def _longest_waiting_first(job: BaselineJob) -> tuple[bool, float, str]:
    """Round robin: waiting jobs by their waiting time, then running ones, the longest turn last."""
    turn_s = job.held_since_s
    return job.current_num_gpus > 0, -turn_s if job.current_num_gpus else turn_s, job.job_id


@dataclass(frozen=True, slots=True)
class Themis(AdmitsAll):
    """Finish-time fairness: GPUs go to the jobs that sharing delays most.

    rho = end in the shared cluster / end in a cluster of the job's own with 1/N of the GPUs, N jobs sharing. Bids are
    true (computed from the tables), so the auction gives GPUs to the worst rho first, and the rest to the next.
    lease_s: how long an auction's outcome holds; GPUs that become free meanwhile are offered at once.
    Source: Themis (Mahajan et al., NSDI 2020), sections 3 and 4.
    """

    name: str = "themis"
    lease_s: float = 300.0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        rho = {job.job_id: finish_time_fairness(job, len(jobs), num_gpus, now_s) for job in jobs}
        queue = sorted(jobs, key=lambda job: (-rho[job.job_id], job.job_id))
        return leased_gangs(queue, num_gpus, now_s, self.lease_s)


def finish_time_fairness(job: BaselineJob, num_jobs: int, num_gpus: int, now_s: float) -> float:
    """rho, if the job holds its gang from now on; above 1 sharing delays it by more than its part."""
    shared_s = now_s - job.submitted_at_s + job.seconds_left(job.gang, now_s)
    return shared_s / _on_its_part_s(job, num_jobs, num_gpus)


def _on_its_part_s(job: BaselineJob, num_jobs: int, num_gpus: int) -> float:
    """The whole job in a cluster of its own; on fewer GPUs than its gang it would run part of the time."""
    slowed = max(job.gang * num_jobs / num_gpus, 1.0)
    return job.num_iterations / job.curve.throughput(job.gang) * slowed


@dataclass(frozen=True, slots=True)
class ThemisInSlots(AdmitsAll):
    """Finish-time fairness as ElasticFlow's published program has it: each slot divides the time anew.

    A program gives each job a share of time, so that the greatest rho of all jobs is least. Gangs run by share, the
    largest first, and jobs that arrive in a slot wait for the next one.
    Source: the published program, which took the policy from Gavel (Narayanan et al., OSDI 2020), section 4.2.
    """

    name: str
    slot_s: float

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        if not at_lease_end(now_s, self.slot_s):
            return held_until_the_next(jobs, now_s, self.slot_s)
        time_shares = fair_time_shares(jobs, num_gpus, now_s)
        held = gangs(sorted(jobs, key=lambda job: (-time_shares[job.job_id], job.job_id)), num_gpus)
        waiting = len(held) < len(jobs)
        return Shares(num_gpus_by_job=held, valid_until_s=next_lease_end_s(now_s, self.slot_s) if waiting else math.inf)


def fair_time_shares(jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> dict[str, float]:
    """The time share of each job, so that the greatest rho is least: the smallest shares that keep it.

    For a given rho the least share of each job is known, and falls with rho. So bisection solves the program exactly:
    the least rho at which no share exceeds 1 and all of them fit into the GPUs.
    """
    if not jobs:
        return {}
    gang_J = np.array([job.gang for job in jobs], dtype=float)
    left_s_J = np.array([job.remaining_iterations / job.curve.throughput(job.gang) for job in jobs])
    left_s_J = np.maximum(left_s_J, _LEAST_LEFT_S)
    age_s_J = np.array([now_s - job.submitted_at_s for job in jobs])
    part_s_J = np.array([_on_its_part_s(job, len(jobs), num_gpus) for job in jobs])

    def shares(rho: float) -> NDArray[np.float64]:
        return left_s_J / np.maximum(rho * part_s_J - age_s_J, left_s_J)

    low = float(np.max((age_s_J + left_s_J) / part_s_J))  # alone, each job would run all the time
    high = low
    while gang_J @ shares(high) > num_gpus:
        low, high = high, 2.0 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if gang_J @ shares(middle) > num_gpus else (low, middle)
    return {job.job_id: float(share) for job, share in zip(jobs, shares(high), strict=True)}


@dataclass(frozen=True, slots=True)
class Chronus(AdmitsAll):
    """Leases for deadlines: as many rigid jobs as possible are packed into leases before their deadlines.

    Jobs whose deadline cannot be kept lose their class, and run with the best-effort jobs on the rest, the shortest
    first. The paper solves a mixed-integer program for each lease. Here jobs are packed by deadline, and where one does
    not fit the largest packed job is given up (Moore and Hodgson's rule, exact for one machine).
    slack: a part of each duration that is added to it. waits_for_ticks: as the published program, jobs start only
    where a lease begins.
    Axis: T = leases from now on. Source: Chronus (Gao et al., SoCC 2021), section 4.
    """

    name: str = "chronus"
    lease_s: float = 240.0
    slack: float = 0.0
    waits_for_ticks: bool = False

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        if self.waits_for_ticks and not at_lease_end(now_s, self.lease_s):
            return held_until_the_next(jobs, now_s, self.lease_s)
        if at_lease_end(now_s, self.lease_s):
            leased = self._leased_now(jobs, num_gpus, now_s)
            order = sorted(jobs, key=lambda job: (job.job_id not in leased, *_shortest_first(job)))
        else:
            feasible = {job.job_id for job in jobs if self._window(job, now_s) is not None}
            order = sorted(jobs, key=lambda job: (job.job_id not in feasible, *_urgent(job, feasible)))
        return leased_gangs(order, num_gpus, now_s, self.lease_s)

    def _leased_now(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> set[str]:
        """The jobs with deadlines that hold the lease that begins now."""
        dated = sorted((job for job in jobs if job.due_s < math.inf), key=by_deadline)
        windows = {job.job_id: window for job in dated if (window := self._window(job, now_s)) is not None}
        free_T = np.full(sum(needed for needed, _ in windows.values()), num_gpus)  # enough for all in turn
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
        """Leases that the job needs, and leases that it can use before its deadline; None if these are too few."""
        needed_s = job.seconds_left(job.gang, now_s) * (1.0 + self.slack)
        needed = max(math.ceil(needed_s / self.lease_s), 1)
        last_s = needed_s - (needed - 1) * self.lease_s  # of its last lease it needs only this
        if job.due_s == math.inf or now_s + needed_s > job.due_s:
            return None
        return needed, max(math.floor((job.due_s - now_s - last_s) / self.lease_s) + 1, needed)


def _first(free_T: NDArray[np.int_], gang: int, needed: int) -> NDArray[np.intp] | None:
    """The first leases in which the gang fits, if there are enough."""
    leases = np.flatnonzero(free_T >= gang)[:needed]
    return leases if len(leases) == needed else None


def _instead_of_the_largest(
    packed: dict[str, _Packed], free_T: NDArray[np.int_], gang: int, needed: int, last: int
) -> NDArray[np.intp] | None:
    """Leases in place of the largest packed job, which is given up; None if that is smaller or does not help."""
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


def _urgent(job: BaselineJob, feasible: set[str]) -> tuple[float, str]:
    """Order between two leases, for GPUs that became free: the earliest feasible deadline, then the shortest job."""
    return (job.due_s, job.job_id) if job.job_id in feasible else _shortest_first(job)
