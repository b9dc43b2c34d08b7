"""Finish-time fairness: at the end of each lease GPUs go to whom sharing delays most. Deadlines are not looked at.

rho = end in the shared cluster / end in a cluster of one's own with 1/N of the GPUs, N jobs sharing. The auction comes
down to this: bids are true (they are computed here, from the tables), so GPUs go to the worst rho first, and what they
cannot use to the next.
Source: Themis (Mahajan et al., NSDI 2020), sections 3 and 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, leased_gangs


@dataclass(frozen=True, slots=True)
class Themis(AdmitsAll):
    """lease_s: how long an auction's outcome holds; GPUs that fall free meanwhile are offered at once."""

    name: str = "themis"
    lease_s: float = 300.0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        rho = {job.job_id: finish_time_fairness(job, len(jobs), num_gpus, now_s) for job in jobs}
        queue = sorted(jobs, key=lambda job: (-rho[job.job_id], job.job_id))
        return leased_gangs(queue, num_gpus, now_s, self.lease_s)


def finish_time_fairness(job: BaselineJob, num_jobs: int, num_gpus: int, now_s: float) -> float:
    """rho, if the job holds its gang from now on; above 1 sharing has cost it more than its part."""
    rate = job.curve.throughput(job.gang)
    shared_s = now_s - job.submitted_at_s + job.seconds_left(job.gang, now_s)
    slowed = max(
        job.gang * num_jobs / num_gpus, 1.0
    )  # with fewer GPUs than its gang it would run part of the time
    return shared_s / (job.num_iterations / rate * slowed)
