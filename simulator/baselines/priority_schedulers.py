"""Schedulers by priority: static priority and elastic weighted fair sharing. A job's weight is its priority.

Source: VirtualFlow (Or et al., MLSys 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from elasticflow.shared.scheduling.allocation.best_effort import Claim, fair_shares
from elasticflow.simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, gangs, running_first


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
