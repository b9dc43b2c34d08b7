"""When a job is expected to finish, as tables, metrics and notices show it. Pure."""
# pyright: strict

from elasticflow.shared.messages.share_schedule import segments
from elasticflow.shared.state.job import Job, Phase


def expected_finish_s(job: Job, now_s: float) -> float | None:
    """When it ended; else by its speed now; else as promised, but not before now; None if unknown.

    A job at risk that does not train has no finish that one can expect.
    """
    if job.ended_at_s is not None:
        return job.ended_at_s
    if job.phase is Phase.PROFILING or job.spec is None:
        return None
    if job.training and job.iterations_per_s:
        remaining_s = (job.spec.max_iterations - job.iteration) / job.iterations_per_s
        return max(now_s, job.progressed_at_s + remaining_s)
    promised_s = promised_finish_s(job)
    return None if promised_s is None or job.at_risk else max(now_s, promised_s)


def promised_finish_s(job: Job) -> float | None:
    """The end of the schedule that admission promised on; None if it promised none."""
    return max((s.end_s for s in segments(job.minimum_satisfactory_share) if s.num_gpus), default=None)


def margin_s(job: Job, now_s: float) -> float | None:
    """The deadline less the (expected) finish; negative if late; None if either is unknown."""
    finish_s = expected_finish_s(job, now_s)
    return None if job.deadline_s is None or finish_s is None else job.deadline_s - finish_s
