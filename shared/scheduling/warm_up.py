"""`python -m elasticflow.shared.scheduling.warm_up`: compile the scheduler once for an installation.

The machine code is cached beside the sources, so that no service compiles before its first decision.
"""

import numpy as np

from elasticflow.shared.machine_code import compiling_alone, forget_older_code, is_complete, note_complete
from elasticflow.shared.messages.gpus import ShareSegment
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_pricing import (
    FEWEST_SUBMISSIONS,
    AdmissionPricing,
    least_gpu_seconds,
)
from elasticflow.shared.scheduling.admission.admission_search import (
    AdmissionSearch,
    earliest_end_from_s,
    end_under_s,
    most_iterations_by,
    schedule_from,
)
from elasticflow.shared.scheduling.allocation.allocation import RowsWithoutPromise, allocate
from elasticflow.shared.scheduling.availability.availability_profile import (
    copy_into,
    empty_availability_profile,
    empty_schedules,
)
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, copy_rows, empty_jobs
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.pool import Demand


def warm_up() -> None:
    """Compile what no process of this installation has compiled yet; takes milliseconds if nothing is missing."""
    if is_complete():
        _call_each_function()
        return
    with compiling_alone():
        _call_each_function()
        note_complete()


def _call_each_function() -> None:
    concave, linear = ScalingCurve((1, 2), (1.0, 1.5)), ScalingCurve((1, 2), (1.0, 2.0))

    def job(name: str, iterations: float, deadline_s: float, curve: ScalingCurve = concave) -> SchedulableJob:
        return SchedulableJob(job_id=name, curve=curve, remaining_iterations=iterations, deadline_s=deadline_s)

    copy_rows(empty_jobs(1, 1), empty_schedules(1), empty_jobs(1, 1), empty_schedules(1), np.empty(0, np.int64))
    plan = AdmissionPlan.build([job("kept", 50.0, 200.0), job("late", 99.0, 10.0)], 2, 0.0)
    for arriving in (
        job("around", 10.0, 300.0),
        job("others-move", 60.0, 70.0),
        job("impossible", 60.0, 61.0),
    ):
        search = AdmissionSearch(plan)
        if search.fits(arriving) and (proposal := search.propose(arriving)) is not None:
            plan.accept(proposal)
    AdmissionSearch(plan).earliest_deadline_s(job("quoted", 10.0, 20.0))
    rigid = ScalingCurve((2,), (2.0,))
    full = AdmissionPlan.build([job("urgent", 60.0, 41.0, linear), job("rigid", 50.0, 61.0, rigid)], 2, 0.0)
    AdmissionSearch(full).propose(job("filled-anew", 10.0, 41.0))
    most_iterations_by(plan, job("shorter", 99.0, 60.0))
    schedule_from(plan, job("later", 5.0, 400.0), 200.0)
    earliest_end_from_s(plan, job("later-still", 5.0, 400.0), 200.0)
    end_under_s(plan, job("with-schedule", 10.0, 300.0), (ShareSegment(0.0, 10.0, 1),))
    copy_into(empty_availability_profile(len(plan.availability.start_B)), plan.availability)
    plan.changed_rows()
    plan = AdmissionPlan.build([job("growing", 50.0, 500.0)], 2, 0.0)
    waiting = RowsWithoutPromise([plan.append(job("opportunistic", 10.0, float("inf")))])
    allocate(plan, waiting, num_lent=1)
    demand = Demand(since_s=0.0, newest=(0.0, 10.0, 10.0) * FEWEST_SUBMISSIONS)
    pricing = AdmissionPricing(demand, [(5.0, 5.0)], 1.0, plan)
    least_gpu_seconds(arriving := job("arriving", 90.0, 100.0), 0.0)
    pricing.is_overpriced(arriving)
    pricing.first_affordable_s(arriving, 100.0, 1.0)


if __name__ == "__main__":
    forget_older_code()
    warm_up()
