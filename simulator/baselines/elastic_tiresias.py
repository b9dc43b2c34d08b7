"""Tiresias with two rules for elastic jobs: shrink while others wait, grow while GPUs are idle.

Source: Amoeba (Wu et al.), section 6, rules R1 and R2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares
from simulator.baselines.greedy import grow
from simulator.baselines.tiresias import Tiresias


@dataclass(frozen=True, slots=True)
class ElasticTiresias(AdmitsAll):
    """max_pending: N of rule R1, which the paper leaves open."""

    name: str = "elastic-tiresias"
    tiresias: Tiresias = field(default_factory=Tiresias)
    max_pending: int = 0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        ordered = self.tiresias.in_order(jobs, now_s)
        shares = _filled(ordered, {job.job_id: job.gang for job in ordered}, num_gpus)
        if len(jobs) - len(shares) > self.max_pending:  # R1
            halved = {
                job.job_id: job.gang if self.tiresias.queue(job, now_s) == 0 else _half(job)
                for job in ordered
            }
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
    """Half of what was requested, or the fewest GPUs on which the job runs."""
    below = [level for level in job.curve.num_gpus_L if level <= job.gang // 2]
    return below[-1] if below else job.curve.num_gpus_L[0]


def _greatest_gain(job: BaselineJob, share: int, num_free: int) -> tuple[float, int]:
    """Throughput gained, relative to its own, for each GPU added; the paper adds them one by one."""
    rate = job.curve.throughput
    return max(
        (
            ((rate(level) - rate(share)) / rate(share) / (level - share), level)
            for level in job.curve.levels
            if share < level <= share + num_free
        ),
        default=(0.0, 0),
    )
