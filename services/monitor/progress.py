"""The progress of jobs as the monitor reports it, and the corrections of their scaling curves. Pure."""
# pyright: strict

from elasticflow.services.monitor.model import Progress
from elasticflow.shared.messages.events import JobProgressed, ThroughputMeasured
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import PoolState, spec_of

# Progress of one job: at first every 2 s, then ever more rarely, so that the ledger grows slowly (docs/adr/0059).
REPORT_EVERY_S = 2.0
REPORTED_PART = 0.01  # of the time since its generation was first seen, between two reports
LONGEST_REPORT_S = 30.0
SETTLED_S = 5.0  # a generation's speed counts after so long
SPEED_CHANGE = 0.1  # a measured speed this much off the curve corrects it
CORRECT_EVERY_S = 10.0  # the same point of a curve


def is_outdated(job: Job, progress: Progress, now_s: float) -> bool:
    """Whether the ledger lacks progress of 2 s or more, the first speed, or a checkpoint."""
    if progress.report.iteration <= job.iteration:
        return False
    return _is_urgent(job, progress) or now_s - job.progressed_at_s >= REPORT_EVERY_S


def is_due(job: Job, progress: Progress, now_s: float, progress_timeout_s: float) -> bool:
    """Whether outdated progress is to be reported now.

    progress_timeout_s: planning assumes progress for so long after a report, so the next one comes in half of it.
    """
    since_s = now_s - job.progressed_at_s
    longest_s = min(LONGEST_REPORT_S, progress_timeout_s / 2)
    is_old = since_s >= min(REPORTED_PART * (now_s - progress.since_s), longest_s)
    return _is_urgent(job, progress) or is_old or _is_behind(job, progress, since_s)


def _is_urgent(job: Job, progress: Progress) -> bool:
    report = progress.report
    first = job.iterations_per_s is None and report.iterations_per_s is not None
    return first or report.checkpoint_iteration > job.checkpoint_iteration


def _is_behind(job: Job, progress: Progress, since_s: float) -> bool:
    """Whether the job has done less than its last report lets planners assume, by more than the work of 2 s."""
    rate = job.iterations_per_s or 0.0
    under_way = 1.0  # the iteration that has begun
    return job.iteration + rate * (since_s - REPORT_EVERY_S) > progress.report.iteration + under_way


def progress_of(job: Job, progress: Progress) -> JobProgressed:
    report = progress.report
    return JobProgressed(
        job_id=job.job_id,
        generation=progress.generation,
        iteration=report.iteration,
        iterations_per_s=progress.mean_iterations_per_s,
        checkpoint_iteration=report.checkpoint_iteration,
        metrics=report.metrics,
        at_s=progress.at_s,
    )


def corrections(pool: PoolState, job: Job, progress: Progress, now_s: float) -> list[ThroughputMeasured]:
    """The point of the curve at which the job trains, if its measured speed differs or was unknown.

    None while its virtual nodes are divided unequally: the curve is that of even divisions.
    """
    curve = pool.curves.get(spec_of(job).profile_key)
    measured, num_gpus = progress.mean_iterations_per_s, len(job.gpus)
    if curve is None or not curve.complete or not measured or not job.trains_as_profiled:
        return []
    if now_s - progress.since_s < SETTLED_S:
        return []
    is_probe = num_gpus == curve.probed_to and num_gpus not in curve.iterations_per_s
    rate = measured if is_probe else _corrected(pool, curve, num_gpus, measured, now_s)
    if rate is None:
        return []
    return [
        ThroughputMeasured(
            profile_key=spec_of(job).measured_key,
            num_gpus=num_gpus,
            iterations_per_s=rate,
            job_id=job.job_id,
            generation=job.generation,
            source="training",
            at_s=now_s,
        )
    ]


def _corrected(pool: PoolState, curve: MeasuredCurve, num_gpus: int, measured: float, now_s: float) -> float | None:
    """Half-way to the measured speed, so that two jobs that share a profile do not make it oscillate.

    None where the pool has a confidence: then the spread of the speeds is kept beside the curve instead.
    """
    expected = curve.iterations_per_s.get(num_gpus)
    fresh = now_s - curve.measured_at_s.get(num_gpus, 0.0) < CORRECT_EVERY_S
    if pool.config.confidence is not None or not expected or fresh:
        return None
    return (measured + expected) / 2 if abs(measured - expected) > SPEED_CHANGE * expected else None
