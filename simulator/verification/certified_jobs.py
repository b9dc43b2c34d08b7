"""The jobs of a trace as certificates have them. Speeds and stops come from the trace, progress from the ledger."""

from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.shared.state.job import Job
from elasticflow.simulator.verification.certificates import CertifiedJob, Level
from elasticflow.simulator.workload.workload import TraceJob, Workload


class CertifiedJobs:
    """The jobs that run on one GPU type. Their deadlines and iterations are those of the trace until an amendment."""

    def __init__(self, workload: Workload, resize_cost: ResizeCost) -> None:
        self._traced = {job.job_id: job for job in workload.jobs}
        self._levels = {job.job_id: _levels(job, resize_cost) for job in workload.jobs}
        self._terms = {job.job_id: (float(job.num_iterations), job.deadline_s) for job in workload.jobs}
        self._resize_cost = resize_cost

    def run(self, job_id: str) -> bool:
        """Whether the job runs on this type."""
        return job_id in self._traced

    def amend(self, job_id: str, num_iterations: float, deadline_s: float | None) -> None:
        self._terms[job_id] = (num_iterations, deadline_s)

    def at(self, job_id: str, job: Job | None, now_s: float) -> CertifiedJob:
        """job: None if this decision admits or rejects it."""
        traced, (num_iterations, deadline_s) = self._traced[job_id], self._terms[job_id]
        assert deadline_s is not None, job_id
        iteration, num_gpus, stalled_until_s = 0.0, 0, 0.0
        if job is not None:
            iteration = float(job.iteration)
            num_gpus = 0 if job.broken or job.num_added_gpus else len(job.gpus)
        if job is not None and num_gpus:
            if job.training:
                iteration += traced.curve.throughput(num_gpus) * (now_s - job.progressed_at_s)
            else:
                stalled_until_s = job.placed_at_s + self._resize_cost.seconds(num_gpus)
        return CertifiedJob(
            job_id=job_id,
            remaining_iterations=num_iterations - iteration,
            deadline_s=deadline_s,
            levels=self._levels[job_id],
            current_num_gpus=num_gpus,
            stalled_until_s=stalled_until_s,
        )


def state_of(job: Job | None) -> tuple[object, ...]:
    """All that `CertifiedJobs.at` reads of a job, except the time. None: just admitted."""
    if job is None:
        return (0, None, False, 0)
    return (job.generation, job.started_at_s, job.broken, job.iteration)


def _levels(job: TraceJob, resize_cost: ResizeCost) -> tuple[Level, ...]:
    """Every profiled level that leaves each GPU a sample of the batch."""
    return tuple(
        Level(num_gpus, rate, resize_cost.seconds(num_gpus))
        for num_gpus, rate in job.curve.rate_by_num_gpus.items()
        if rate > 0 and num_gpus <= job.global_batch_size
    )
