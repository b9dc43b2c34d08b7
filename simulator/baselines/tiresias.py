"""Tiresias: discretised least attained service in two dimensions, for rigid gangs and for elastic jobs.

Jobs sink through queues as they use GPU-seconds. Preemptive, first come first served within a queue; neither durations
nor deadlines are known.
Source: Tiresias (Gu et al., NSDI 2019), section 3; Amoeba (Wu et al.), section 6 (queues, quanta, rules R1 and R2).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticflow.shared.scheduling.allocation.best_effort import TIRESIAS_PROMOTE_AFTER, TIRESIAS_QUANTA_GPU_S
from elasticflow.simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, by_arrival, gangs, grow


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
