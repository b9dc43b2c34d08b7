"""Promises on a plan, one after another, as admission makes them."""

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.insistence import MANY_FILLINGS, Insistence
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.proposal import Proposal
from shared.scheduling.room import around, by_deadline


def admit(plan: AdmissionPlan, job: SchedulableJob, most_fillings: int = MANY_FILLINGS) -> bool:
    """Promise it too, if that makes no other late."""
    proposal = Insistence(plan, most_fillings).propose(job)
    if proposal is not None:
        plan.accept(proposal)
    return proposal is not None


def fits_around(plan: AdmissionPlan, job: SchedulableJob) -> bool:
    """Whether it can be promised without moving any other."""
    with plan.trying(job) as row:
        return around(plan, row, job) is not None


def filled_by_deadline(plan: AdmissionPlan, job: SchedulableJob) -> Proposal | None:
    """Among the others, at its own place by deadline."""
    with plan.trying(job) as row:
        return by_deadline(plan, row, job)


def utilization(plan: AdmissionPlan, until_s: float) -> float:
    """The part of all GPU-seconds until an instant that is not free."""
    free = 0.0
    for piece in range(plan.profile.size[0]):
        start_s, is_last = plan.profile.start_B[piece], piece + 1 == plan.profile.size[0]
        end_s = until_s if is_last else min(plan.profile.start_B[piece + 1], until_s)
        free += plan.profile.free_B[piece] * max(end_s - start_s, 0.0)
    return 1.0 - free / (plan.num_gpus * (until_s - plan.now_s))
