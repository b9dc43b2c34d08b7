"""Promises on a plan, one after another, as admission adds them."""

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_search import MANY_JOBS, AdmissionSearch, insert_around
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob


def admit(plan: AdmissionPlan, job: SchedulableJob, max_jobs: int = MANY_JOBS) -> bool:
    """Promise the job too, if that makes no other job late."""
    proposal = AdmissionSearch(plan, max_jobs).propose(job)
    if proposal is not None:
        plan.accept(proposal)
    return proposal is not None


def fits_around(plan: AdmissionPlan, job: SchedulableJob) -> bool:
    """Whether the job can be promised without moving another job."""
    with plan.with_candidate(job) as row:
        return insert_around(plan, row, job) is not None


def utilization(plan: AdmissionPlan, until_s: float) -> float:
    """The fraction of all GPU-seconds until an instant that is not free."""
    free = 0.0
    for piece in range(plan.availability.size[0]):
        start_s, is_last = plan.availability.start_B[piece], piece + 1 == plan.availability.size[0]
        end_s = until_s if is_last else min(plan.availability.start_B[piece + 1], until_s)
        free += plan.availability.free_B[piece] * max(end_s - start_s, 0.0)
    return 1.0 - free / (plan.num_gpus * (until_s - plan.now_s))
