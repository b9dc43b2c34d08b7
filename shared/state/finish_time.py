"""When a job is expected to finish, as tables, metrics and notices show it. Pure."""

# pyright: strict

from elasticflow.shared.messages.gpus import ShareSchedule, segments
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.promise import has_promise

# The monitor reports progress of one job at first every 2 s, then ever more rarely (docs/adr/0059).
REPORT_EVERY_S = 2.0
REPORTED_PART = 0.01  # of the time since its generation was first seen, between two reports
LONGEST_REPORT_S = 30.0
SILENT_S = 10.0  # least time without a report after which the last speed says nothing
SILENT_STEPS = 10.0  # or the time of so many steps


def expected_finish_s(job: Job, now_s: float) -> float | None:
    """When it ended; else by its speed now; else as planned, but not before now; None if unknown, or if rejected.

    A promise that is not at risk is kept by a plan: then the finish is at most that of the plan, although its speed on
    few GPUs says otherwise. A job at risk that does not train has no finish that one can expect.
    """
    if job.ended_at_s is not None:
        return None if job.phase is Phase.REJECTED else job.ended_at_s
    if job.phase is Phase.PROFILING or job.spec is None:
        return None
    planned_s = None if job.at_risk else planned_finish_s(job)
    rate = speed_now(job, now_s)
    if rate is None:
        return None if planned_s is None else max(now_s, planned_s)
    finish_s = job.progressed_at_s + (job.spec.max_iterations - job.iteration) / rate
    is_late = has_promise(job) and job.deadline_s is not None and finish_s > job.deadline_s
    return max(now_s, planned_s if is_late and planned_s is not None else finish_s)


def speed_now(job: Job, now_s: float) -> float | None:
    """Iterations/s as last reported; None if it does not train, or if it is silent."""
    return job.iterations_per_s if job.training and job.iterations_per_s and not is_silent(job, now_s) else None


def is_silent(job: Job, now_s: float) -> bool:
    """Whether no progress is reported although reports are overdue: a job that hangs, or a very long step."""
    silent_at_s = silent_from_s(job)
    return silent_at_s is not None and now_s > silent_at_s


def silent_from_s(job: Job) -> float | None:
    """When it is silent if nothing else is reported; None if it does not train or has no speed."""
    if not job.training or not job.iterations_per_s:
        return None
    trained_s = max(job.progressed_at_s - (job.started_at_s or 0.0), 0.0)
    report_s = max(REPORT_EVERY_S, min(REPORTED_PART * trained_s, LONGEST_REPORT_S))
    return job.progressed_at_s + max(SILENT_S, 2.0 * report_s, SILENT_STEPS / job.iterations_per_s)


def planned_finish_s(job: Job) -> float | None:
    """The end of the newest schedule that keeps its promise; None if it has none."""
    return _end_s(job.planned_share or job.minimum_satisfactory_share)


def promised_finish_s(job: Job) -> float | None:
    """The end of the schedule that admission promised on; None if it promised none."""
    return _end_s(job.minimum_satisfactory_share)


def _end_s(schedule: ShareSchedule) -> float | None:
    return max((s.end_s for s in segments(schedule) if s.num_gpus), default=None)


def margin_s(job: Job, now_s: float) -> float | None:
    """The deadline less the (expected) finish; negative if late; None if either is unknown, or it ended unfinished."""
    if not job.live and job.phase is not Phase.FINISHED:
        return None
    finish_s = expected_finish_s(job, now_s)
    return None if job.deadline_s is None or finish_s is None else job.deadline_s - finish_s
