"""`python -m shared.scheduling.warm_up`: compile the scheduler's loops, once for an installation.

The machine code is kept beside the sources (`compiled`), so that no service has to compile before its first decision.
"""

import numpy as np

from shared.messages.demand import Demand
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.allocation import allocate
from shared.scheduling.insistence import Insistence
from shared.scheduling.job_table import SchedulableJob, Segment, copy_rows, empty_jobs
from shared.scheduling.machine_code import compiling_alone, forget_older_code, is_complete, note_complete
from shared.scheduling.profile import copy_into, empty_profile, empty_schedules
from shared.scheduling.quoting import earliest_end_from_s, end_under_s, most_iterations_by, schedule_from
from shared.scheduling.scaling_curve import ScalingCurve
from shared.scheduling.selection import Selection, least_gpu_seconds


def warm_up() -> None:
    """Compile what no process of this installation has compiled before: milliseconds, where that is nothing."""
    if is_complete():
        _call_each_function()
        return
    with compiling_alone():
        _call_each_function()
        note_complete()


def _call_each_function() -> None:
    concave, linear = ScalingCurve((1, 2), (1.0, 1.5)), ScalingCurve((1, 2), (1.0, 2.0))

    def job(name: str, iterations: float, deadline_s: float, curve: ScalingCurve = concave) -> SchedulableJob:
        return SchedulableJob(
            job_id=name, curve=curve, remaining_iterations=iterations, deadline_s=deadline_s
        )

    copy_rows(
        empty_jobs(1, 1), empty_schedules(1), empty_jobs(1, 1), empty_schedules(1), np.empty(0, np.int64)
    )
    plan = AdmissionPlan.build([job("kept", 50.0, 200.0), job("late", 99.0, 10.0)], 2, 0.0)
    for asking in (job("around", 10.0, 300.0), job("making-room", 60.0, 70.0), job("impossible", 60.0, 61.0)):
        room = Insistence(plan)
        if room.has_room_for(asking) and (proposal := room.propose(asking)) is not None:
            plan.accept(proposal)
    Insistence(plan).earliest_deadline_s(job("quoted", 10.0, 20.0))
    rigid = ScalingCurve((2,), (2.0,))
    full = AdmissionPlan.build([job("urgent", 60.0, 41.0, linear), job("rigid", 50.0, 61.0, rigid)], 2, 0.0)
    Insistence(full).propose(job("in-a-clearing", 10.0, 41.0))
    most_iterations_by(plan, job("shorter", 99.0, 60.0))
    schedule_from(plan, job("later", 5.0, 400.0), 200.0)
    earliest_end_from_s(plan, job("later-still", 5.0, 400.0), 200.0)
    end_under_s(plan, job("asked-again", 10.0, 300.0), (Segment(0.0, 10.0, 1),))
    copy_into(empty_profile(len(plan.profile.start_B)), plan.profile)
    plan.changed_rows()
    plan = AdmissionPlan.build([job("growing", 50.0, 500.0)], 2, 0.0)
    allocate(plan, [plan.table.append(job("opportunistic", 10.0, float("inf")))], num_lent=1)
    selection = Selection(Demand().added(0.0, 10.0), [5.0], 1.0, 2)
    selection.dearest_gpu_seconds(10.0)
    least_gpu_seconds(asking := job("asking", 5.0, 60.0), 0.0)
    selection.is_too_dear(asking, plan.profile)
    selection.first_worth_s(asking, 60.0, 1.0, plan.profile)


if __name__ == "__main__":
    forget_older_code()
    warm_up()
