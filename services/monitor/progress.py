"""The progress of jobs as the monitor reports it, and the corrections of their scaling curves. Pure."""
# pyright: strict

from statistics import fmean

from elasticflow.services.monitor.model import MonitorState, Progress
from elasticflow.shared.messages.events import JobProgressed, ThroughputMeasured
from elasticflow.shared.state.finish_time import LONGEST_REPORT_S, REPORT_EVERY_S, REPORTED_PART
from elasticflow.shared.state.gpu_types import speed_at_place, topology_of
from elasticflow.shared.state.job import SETTLED_S, Job
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import PoolState, slow_gpu, slow_until_s, spec_of
from elasticflow.shared.state.topology import Level

SPEED_CHANGE = 0.1  # a measured speed this much off the curve corrects it
CORRECT_EVERY_S = 10.0  # the same point of a curve
# of a generation, in which workers report a straggler: more than the straggler detection needs
STRAGGLER_KNOWN_S, STRAGGLER_KNOWN_STEPS = 15.0, 15
MOST_DELAYED = 9.5  # times: a curve that is off by ten times is wrong, and others must not wait for its jobs


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


def corrections(state: MonitorState, job: Job, progress: Progress, now_s: float) -> list[ThroughputMeasured]:
    """The point of the curve at which the job trains, if its measured speed differs or was unknown.

    Each level of connection has points of its own. None while its virtual nodes are divided unequally: the curve is
    that of even divisions.
    """
    curve, num_gpus = state.pool.curves.get(spec_of(job).profile_key), len(job.gpus)
    measured = settled_speed(job, progress, now_s)
    if curve is None or not curve.complete or not measured:
        return []
    if not curve.is_probed_by(num_gpus):
        if not _may_correct(state.pool, curve, num_gpus, now_s):
            return []
        measured = _mean_speed(state, job, now_s)
        known = speed_at_place(state.pool, job, curve)
        is_close = known is not None and abs(measured - known) <= SPEED_CHANGE * known
        is_lower = known is None or measured < known
        is_explained = known is None or measured * MOST_DELAYED >= known
        if is_close or (is_lower and is_explained and _may_be_delayed(state.pool, job, progress, now_s)):
            return []
    return [
        ThroughputMeasured(
            profile_key=spec_of(job).measured_key,
            num_gpus=num_gpus,
            iterations_per_s=measured,
            job_id=job.job_id,
            generation=job.generation,
            source="training",
            at_s=now_s,
        )
    ]


def _may_be_delayed(pool: PoolState, job: Job, progress: Progress | None, now_s: float) -> bool:
    """Whether a slow GPU may be why the job is slower than its curve: one is known, or would not be reported yet."""
    speed = progress.mean_iterations_per_s if progress is not None else None
    if len(job.gpus) == 1 or progress is None or not speed:
        return False
    reported_by_s = progress.since_s + max(STRAGGLER_KNOWN_S, STRAGGLER_KNOWN_STEPS / speed)
    slow = (slow_gpu(pool, gpu) for gpu in job.gpus)
    return now_s < reported_by_s or any(each is not None and now_s < slow_until_s(pool, each) for each in slow)


def settled_speed(job: Job, progress: Progress | None, now_s: float) -> float | None:
    """Iterations/s of the generation that trains, once it has settled; None while the curve does not describe it."""
    if progress is None or progress.generation != job.training_generation or not job.trains_as_profiled:
        return None
    return progress.mean_iterations_per_s if now_s - progress.since_s >= SETTLED_S else None


def _may_correct(pool: PoolState, curve: MeasuredCurve, num_gpus: int, now_s: float) -> bool:
    """Not where the pool has a confidence, unless the speed is only bounded: then the spread of the speeds is kept
    beside the curve instead."""
    is_fresh = now_s - curve.measured_at_s.get(num_gpus, 0.0) < CORRECT_EVERY_S
    is_kept_beside = pool.config.confidence is not None and num_gpus not in curve.bounded
    return not is_kept_beside and num_gpus in curve.iterations_per_s and not is_fresh


def _mean_speed(state: MonitorState, job: Job, now_s: float) -> float:
    """The mean over all jobs of this profile on as many GPUs, connected alike: they agree on one point of the curve."""
    key, num_gpus, level = spec_of(job).measured_key, len(job.gpus), _level(state.pool, job)
    return fmean(
        speed
        for other in state.pool.live_jobs.values()
        if len(other.gpus) == num_gpus
        and spec_of(other).measured_key == key
        and _level(state.pool, other) == level
        and (speed := settled_speed(other, state.progress.get(other.job_id), now_s))
    )


def _level(pool: PoolState, job: Job) -> Level:
    """What connects its GPUs."""
    return topology_of(pool, job.own_gpus).level_of(job.own_gpus)
