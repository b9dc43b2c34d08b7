"""Checks hindsight schedules with the independent checker of certificates, each GPU type as a pool of its own."""

from collections.abc import Iterator, Mapping

from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.bound import Hindsight
from elasticflow.simulator.verification.certificate_checker import Checker
from elasticflow.simulator.verification.certificates import CertifiedJob, CertifiedPromise, Level, PromiseCertificate
from elasticflow.simulator.workload.workload import Workload


def problems(made: Hindsight, workload: Workload, num_gpus_by_type: Mapping[str, int], cost: ResizeCost) -> list[str]:
    """One sentence for each violation."""
    first_s = min((job.submitted_at_s for job in workload.jobs), default=0.0)
    found = [
        f"{job.job_id} holds GPUs before it is submitted"
        for job in workload.jobs
        if job.job_id in made.schedules and made.schedules[job.job_id][0].start_s < job.submitted_at_s
    ]
    for gpu_type, num_gpus in num_gpus_by_type.items():
        promises = tuple(_promises(made, workload.on_type(gpu_type), gpu_type, cost))
        found += Checker().check_promises(PromiseCertificate(now_s=first_s, num_gpus=num_gpus, promises=promises))
    return found


def _promises(made: Hindsight, workload: Workload, gpu_type: str, cost: ResizeCost) -> Iterator[CertifiedPromise]:
    for job in workload.jobs:
        if made.gpu_types.get(job.job_id) == gpu_type:
            assert job.deadline_s is not None
            rates = zip(job.curve.num_gpus_L, job.curve.iterations_per_s_L, strict=True)
            job_then = CertifiedJob(
                job_id=job.job_id,
                remaining_iterations=job.num_iterations,
                deadline_s=job.deadline_s,
                levels=tuple(Level(level, rate, cost.seconds(level)) for level, rate in rates if rate > 0),
            )
            yield CertifiedPromise(job=job_then, schedule=made.schedules[job.job_id])
