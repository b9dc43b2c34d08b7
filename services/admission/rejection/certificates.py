"""Certificates of rejections: that a deadline is infeasible beside the promises, or what the price was."""

import math

from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.rejection import InfeasibilityCertificate, Overpriced, Unproven
from elasticflow.shared.scheduling.admission.admission_pricing import least_gpu_seconds
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scheduler_view import PlannedTime
from elasticflow.shared.scheduling.proofs.infeasibility import find_infeasibility_certificate

MAX_PROGRAM_VARIABLES = 600  # of the linear program that may prove a rejection


def overpriced(gpu_seconds: float, most_gpu_seconds: float, crowded: tuple[float, float]) -> Overpriced:
    price, (from_s, until_s) = 1.0 / max(most_gpu_seconds, 1e-9), crowded
    return Overpriced(
        gpu_seconds=gpu_seconds,
        price=price,
        value=1.0,
        price_limit=min(1.0 / gpu_seconds, price),
        crowded_from_s=from_s,
        crowded_until_s=until_s,
    )


def infeasibility_certificate(
    session: AdmissionSession, job: SchedulableJob, earliest_s: PlannedTime | None, *, is_thorough: bool
) -> InfeasibilityCertificate:
    if not is_thorough and math.isfinite(least_gpu_seconds(job, session.now_s)):
        return Unproven(earliest_deadline_s=earliest_s)
    return find_infeasibility_certificate(
        job,
        _promised_jobs(session) if is_thorough else [],
        session.plan.num_gpus,
        session.now_s,
        job.resize_cost,
        drops=session.plan.drops,
        earliest_deadline_s=earliest_s,
        max_variables=MAX_PROGRAM_VARIABLES,
    )


def _promised_jobs(session: AdmissionSession) -> list[SchedulableJob]:
    plan, curves = session.plan, session.planned_pool.curves
    jobs, found = plan.table.jobs, list[SchedulableJob]()
    for row in map(int, plan.promised):
        newly = plan.accepted.get(row)
        found.append(
            SchedulableJob(
                job_id=plan.table.job_ids[row],
                curve=newly.curve if newly else curves[row],
                remaining_iterations=float(jobs.remaining_J[row]),
                deadline_s=float(jobs.deadline_J[row]),
                current_num_gpus=int(jobs.held_J[row]),
                stalled_until_s=float(jobs.stalled_until_J[row]),
            )
        )
    return found
