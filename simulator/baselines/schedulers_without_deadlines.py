"""Schedulers that ignore deadlines: priorities, weighted fair sharing, Tiresias and Pollux."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from elasticflow.shared.scheduling.allocation.best_effort import (
    TIRESIAS_PROMOTE_AFTER,
    TIRESIAS_QUANTA_GPU_S,
    Claim,
    fair_shares,
)
from elasticflow.simulator.baselines.baseline import (
    AdmitsAll,
    BaselineJob,
    Shares,
    by_arrival,
    gangs,
    grow,
    running_first,
)
from elasticflow.simulator.baselines.lease_schedulers import at_lease_end, next_lease_end_s

# --- priority schedulers ------------------------------------------------------------------------------
# Schedulers by priority: static priority and elastic weighted fair sharing. A job's weight is its priority.
#
# Source: VirtualFlow (Or et al., MLSys 2022).


@dataclass(frozen=True, slots=True)
class StaticPriority(AdmitsAll):
    """Rigid gangs by priority, which keep their GPUs to the end.

    A job that does not fit waits, and smaller ones behind it may start. Source: section 6.4, the baseline there.
    """

    name: str = "static-priority"

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        return Shares(num_gpus_by_job=gangs(running_first(sorted(jobs, key=_by_priority)), num_gpus))


@dataclass(frozen=True, slots=True)
class WeightedFairSharing(AdmitsAll):
    """Elastic: GPUs in proportion to priority, up to each job's request; jobs shrink for others.

    The paper's virtual nodes, as many as GPUs were requested, bound how wide a job can become.
    Source: section 4.2 and Algorithm 1.
    """

    name: str = "weighted-fair-sharing"

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        queue = sorted((job for job in jobs if not job.current_num_gpus), key=_by_priority)
        running = sorted((job for job in jobs if job.current_num_gpus), key=_by_priority)
        allocations = _fair(running, num_gpus)
        for job in queue:
            fair = _fair([*running, job], num_gpus)
            if job.job_id not in fair:
                continue  # its fewest GPUs do not fit; in the paper one GPU is always enough
            above = (other.job_id for other in running if other.weight > job.weight)
            if any(fair.get(job_id, 0) < allocations.get(job_id, 0) for job_id in above):
                break
            allocations = fair
            running.append(job)
        return Shares(num_gpus_by_job=allocations)


def _by_priority(job: BaselineJob) -> tuple[float, float, str]:
    """The greatest weight first, then by arrival."""
    return -job.weight, job.submitted_at_s, job.job_id


def _fair(jobs: Sequence[BaselineJob], num_gpus: int) -> dict[str, int]:
    """Weighted max-min fair shares: every job its fewest GPUs, then the job with the least for its weight grows."""
    return fair_shares(
        (Claim(name=job.job_id, weight=job.weight, levels=_levels(job), order=_by_priority(job)) for job in jobs),
        num_gpus,
    )


def _levels(job: BaselineJob) -> tuple[int, ...]:
    """Those up to its request, and always the fewest."""
    fewest, *more = job.curve.levels
    return (fewest, *(level for level in more if level <= job.gang))


# --- tiresias -----------------------------------------------------------------------------------------
# Tiresias: discretised least attained service in two dimensions, for rigid gangs and for elastic jobs.
#
# Jobs sink through queues as they use GPU-seconds. Preemptive, first come first served within a queue; neither
# durations nor deadlines are known. Source: Tiresias (Gu et al., NSDI 2019), section 3; Amoeba (Wu et al.), section 6
# (queues, quanta, rules R1 and R2).


@dataclass(frozen=True, slots=True)
class Tiresias(AdmitsAll):
    """quanta_gpu_s: attained GPU-seconds at which a job sinks into the next queue.

    promote_after: a job that waits this many times as long as it has run returns to the first queue, and its service
    counts from there again.
    """

    name: str = "tiresias"
    quanta_gpu_s: tuple[float, ...] = TIRESIAS_QUANTA_GPU_S
    promote_after: float = TIRESIAS_PROMOTE_AFTER

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        shares = gangs(self.in_order(jobs, now_s), num_gpus)
        return Shares(num_gpus_by_job=shares, valid_until_s=self.next_change_s(jobs, shares, num_gpus, now_s))

    def in_order(self, jobs: Sequence[BaselineJob], now_s: float) -> list[BaselineJob]:
        """The jobs by queue, then by arrival."""
        return sorted(jobs, key=lambda job: (self.queue(job, now_s), *by_arrival(job)))

    def queue(self, job: BaselineJob, now_s: float) -> int:
        """0 is served first."""
        if self._is_promoted(job, now_s):
            return 0
        return bisect_right(self.quanta_gpu_s, self._service_gpu_s(job))

    def next_change_s(self, jobs: Sequence[BaselineJob], shares: dict[str, int], num_gpus: int, now_s: float) -> float:
        """When a running job sinks or a waiting one is promoted; infinity while no job waits."""
        if len(shares) == len(jobs):
            return math.inf
        sinks_s = (
            now_s + (limit - service_gpu_s) / shares[job.job_id]
            for job in jobs
            if job.job_id in shares
            for service_gpu_s in (0.0 if self._is_promoted(job, now_s) else self._service_gpu_s(job),)
            for limit in self.quanta_gpu_s
            if limit > service_gpu_s
        )
        promoted_s = (self._promoted_at_s(job) for job in jobs if job.job_id not in shares)
        return min((at_s for at_s in (*sinks_s, *promoted_s) if at_s > now_s), default=math.inf)

    def _is_promoted(self, job: BaselineJob, now_s: float) -> bool:
        return not job.current_num_gpus and now_s >= self._promoted_at_s(job)

    def _promoted_at_s(self, job: BaselineJob) -> float:
        ran_s = self._service_gpu_s(job) / job.gang
        return job.held_since_s + self.promote_after * ran_s if ran_s else math.inf

    def _service_gpu_s(self, job: BaselineJob) -> float:
        """Attained since its last promotion."""
        since_gpu_s = 0.0
        for wait in job.waits:
            ran_s = (wait.attained_gpu_seconds - since_gpu_s) / job.gang
            if ran_s and wait.waited_s >= self.promote_after * ran_s:
                since_gpu_s = wait.attained_gpu_seconds
        return job.attained_gpu_seconds - since_gpu_s


@dataclass(frozen=True, slots=True)
class ElasticTiresias(AdmitsAll):
    """Jobs shrink while others wait (R1) and grow while GPUs are idle (R2).

    max_pending: N of rule R1, which the paper leaves open.
    """

    name: str = "elastic-tiresias"
    tiresias: Tiresias = field(default_factory=Tiresias)
    max_pending: int = 0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        ordered = self.tiresias.in_order(jobs, now_s)
        shares = _filled(ordered, {job.job_id: job.gang for job in ordered}, num_gpus)
        if len(jobs) - len(shares) > self.max_pending:  # R1
            halved = {job.job_id: job.gang if self.tiresias.queue(job, now_s) == 0 else _half(job) for job in ordered}
            shares = _filled(ordered, halved, num_gpus)
        if len(shares) == len(jobs):  # R2
            grow(ordered, shares, num_gpus, _greatest_gain)
        changes_s = self.tiresias.next_change_s(jobs, shares, num_gpus, now_s)
        return Shares(num_gpus_by_job=shares, valid_until_s=changes_s)


def _filled(ordered: Sequence[BaselineJob], wanted: dict[str, int], num_gpus: int) -> dict[str, int]:
    shares: dict[str, int] = {}
    for job in ordered:
        if wanted[job.job_id] <= num_gpus:
            shares[job.job_id] = wanted[job.job_id]
            num_gpus -= wanted[job.job_id]
    return shares


def _half(job: BaselineJob) -> int:
    """Half of the request, or the fewest GPUs on which the job runs."""
    below = [level for level in job.curve.num_gpus_L if level <= job.gang // 2]
    return below[-1] if below else job.curve.num_gpus_L[0]


def _greatest_gain(job: BaselineJob, share: int, num_free: int) -> tuple[float, int]:
    """Throughput gained for each added GPU, relative to the present one; the paper adds GPUs one by one."""
    rate = job.curve.throughput
    return max(
        (
            ((rate(level) - rate(share)) / rate(share) / (level - share), level)
            for level in job.curve.levels
            if share < level <= share + num_free
        ),
        default=(0.0, 0),
    )


# --- pollux -------------------------------------------------------------------------------------------
# Pollux: GPUs go to the jobs with the greatest speedup over an equal part of the cluster. It ignores deadlines.
#
# Goodput = throughput x statistical efficiency. A job here has a fixed global batch, whose efficiency is the same on
# any number of GPUs: it is taken as 1, so goodput = throughput, and Pollux's choice of batch size is left out. Its
# genetic search over placements becomes a greedy one over numbers of GPUs, with the same fitness: the power mean of
# speedups. Source: Pollux (Qiao et al., OSDI 2021), section 4.2.

POWER = -1  # of the power mean: the harmonic mean, which counts the slowest most


@dataclass(frozen=True, slots=True)
class Pollux(AdmitsAll):
    """interval_s: between two optimizations; a job that arrives meanwhile starts on its fewest GPUs if free."""

    name: str = "pollux-fixed-batch"
    interval_s: float = 60.0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        next_s = next_lease_end_s(now_s, self.interval_s)
        queue = running_first(sorted(jobs, key=by_arrival))
        if not at_lease_end(now_s, self.interval_s):
            held = {job.job_id: job.current_num_gpus for job in jobs}
            return Shares(num_gpus_by_job=_started(queue, num_gpus, held), valid_until_s=next_s)
        shares = _optimized(queue, num_gpus, now_s)
        settled = shares == _optimized(queue, num_gpus, None)  # age makes no change better
        return Shares(num_gpus_by_job=shares, valid_until_s=math.inf if settled else next_s)


def _started(queue: Iterable[BaselineJob], num_gpus: int, held: dict[str, int] | None = None) -> dict[str, int]:
    """Each job its fewest GPUs or those it holds, in this order: without GPUs its speedup would be 0."""
    shares: dict[str, int] = {}
    for job in queue:
        level = (held or {}).get(job.job_id, 0) or job.curve.levels[0]
        if level <= num_gpus:
            shares[job.job_id] = level
            num_gpus -= level
    return shares


def _optimized(queue: Sequence[BaselineJob], num_gpus: int, now_s: float | None) -> dict[str, int]:
    """Give GPUs step by step where each raises the fitness most. now_s: None to ignore the cost of resizes."""
    powers = {job.job_id: _powers(job, num_gpus / len(queue), now_s) for job in queue}

    def step(job: BaselineJob, share: int, num_free: int) -> tuple[float, int]:
        power = powers[job.job_id]
        return max(
            (
                ((power[share] - power[level]) / (level - share), level)
                for level in power
                if share < level <= share + num_free
            ),
            default=(0.0, 0),
        )

    shares = _started(queue, num_gpus)
    grow(queue, shares, num_gpus, step)
    return shares


def _powers(job: BaselineJob, fair_num_gpus: float, now_s: float | None) -> dict[int, float]:
    """Each level's term in the power mean. A speedup is goodput over that on an equal part of the cluster."""
    fair = job.level(int(fair_num_gpus)) or job.curve.levels[0]
    fair_goodput = job.curve.throughput(fair)
    return {
        level: (job.curve.throughput(level) / fair_goodput * _reallocation_factor(job, level, now_s)) ** POWER
        for level in job.curve.levels
    }


def _reallocation_factor(job: BaselineJob, num_gpus: int, now_s: float | None) -> float:
    """The part of its age for which the job would have trained if it is resized as often in future."""
    if now_s is None or not job.current_num_gpus or num_gpus == job.current_num_gpus:
        return 1.0
    age_s, delay_s = now_s - job.submitted_at_s, job.resize_cost.seconds(num_gpus)
    return max(age_s - job.num_resizes * delay_s, 1.0) / (max(age_s, 1.0) + delay_s)
