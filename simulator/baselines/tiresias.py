"""Least attained service in two dimensions, discretised: jobs sink through queues as they use up GPU-seconds.

Rigid gangs, preemptive, first come first served within a queue; neither durations nor deadlines are known.
Source: Tiresias (Gu et al., NSDI 2019), section 3; Amoeba, section 6 (the queues and their quanta).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, by_arrival, gangs


@dataclass(frozen=True, slots=True)
class Tiresias(AdmitsAll):
    """quanta_gpu_s: attained GPU-seconds at which a job sinks into the next queue.

    promote_after: a job that waits this many times as long as it has run goes back to the first queue; it sinks
    again as soon as it runs, since what it has attained stays.
    """

    name: str = "tiresias"
    quanta_gpu_s: tuple[float, ...] = (10_000.0, 200_000.0)
    promote_after: float = 8.0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        shares = gangs(self.in_order(jobs, now_s), num_gpus)
        return Shares(num_gpus_by_job=shares, valid_until_s=self.next_change_s(jobs, shares, num_gpus, now_s))

    def in_order(self, jobs: Sequence[BaselineJob], now_s: float) -> list[BaselineJob]:
        """By queue, then by arrival."""
        return sorted(jobs, key=lambda job: (self.queue(job, now_s), *by_arrival(job)))

    def queue(self, job: BaselineJob, now_s: float) -> int:
        """0 is served first."""
        if not job.current_num_gpus and now_s >= self._promoted_at_s(job):
            return 0
        return bisect_right(self.quanta_gpu_s, job.attained_gpu_seconds)

    def next_change_s(
        self, jobs: Sequence[BaselineJob], shares: dict[str, int], num_gpus: int, now_s: float
    ) -> float:
        """When a job that runs sinks, or one that waits is promoted; while nobody waits it does not matter."""
        if len(shares) == len(jobs):
            return math.inf
        sinks_s = (
            now_s + (limit - job.attained_gpu_seconds) / shares[job.job_id]
            for job in jobs
            if job.job_id in shares
            for limit in self.quanta_gpu_s
            if limit > job.attained_gpu_seconds
        )
        promoted_s = (self._promoted_at_s(job) for job in jobs if job.job_id not in shares)
        return min((at_s for at_s in (*sinks_s, *promoted_s) if at_s > now_s), default=math.inf)

    def _promoted_at_s(self, job: BaselineJob) -> float:
        ran_s = job.attained_gpu_seconds / job.gang
        return job.held_since_s + self.promote_after * ran_s if ran_s else math.inf
