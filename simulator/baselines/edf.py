"""Earliest deadline first, each job as wide as it gets faster. Deadlines that cannot be met are not noticed.

Source: ElasticFlow, section 6.1; Liu and Layland, JACM 1973.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, by_deadline


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst(AdmitsAll):
    """Jobs without a deadline come last, in the order of their arrival."""

    name: str = "edf"

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        return Shares(num_gpus_by_job=widest_in_order(sorted(jobs, key=by_deadline), num_gpus))


def widest_in_order(jobs_in_order: Sequence[BaselineJob], num_gpus: int) -> dict[str, int]:
    """Each job its fastest level of those that are left, in this order."""
    shares: dict[str, int] = {}
    for job in jobs_in_order:
        if not num_gpus:
            break
        if level := job.level(num_gpus):
            shares[job.job_id] = level
            num_gpus -= level
    return shares
