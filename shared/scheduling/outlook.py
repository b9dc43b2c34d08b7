"""A folded pool as the algorithms see it at one instant: curves to count on, work that is left, shares held.

All three planners look through these eyes, so that what admission promises is what the allocator plans.
"""

import math
from functools import lru_cache
from itertools import chain

from shared.messages.cluster import ShareSchedule, segments
from shared.messages.job import JobSpec
from shared.messages.pool_state import Job, PoolState, spec_of
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.free_profile import Schedule, Segment
from shared.scheduling.progressive_filling import SchedulableJob
from shared.scheduling.scaling_curve import ScalingCurve

EXTRAPOLATE_S = (
    10.0  # progress is assumed for so long after the last report, then it counts as standing still
)


def largest_level(state: PoolState, spec: JobSpec) -> int:
    """The largest number of GPUs that this job could ever hold here: a power of two, within batch and pool."""
    most = min(state.num_gpus, spec.global_batch_size)
    return 1 << (most.bit_length() - 1) if most else 0


def profile_known(state: PoolState, spec: JobSpec) -> bool:
    """Whether the job's scaling curve has been measured to its end."""
    measured = state.curves.get(spec.profile_key)
    return measured is not None and measured.complete


def known_curve(state: PoolState, spec: JobSpec) -> ScalingCurve | None:
    """The scaling curve to count on: measured, less the margin. None if unknown, or if it runs nowhere here."""
    if not profile_known(state, spec):
        return None
    measured = state.curves[spec.profile_key]
    most = largest_level(state, spec)
    points = tuple(sorted((n, rate) for n, rate in measured.iterations_per_s.items() if n <= most))
    return _curve(points, 1.0 - state.config.throughput_margin)


@lru_cache(maxsize=4096)
def _curve(points: tuple[tuple[int, float], ...], factor: float) -> ScalingCurve | None:
    usable = [(n, rate * factor) for n, rate in points if rate > 0 and n & (n - 1) == 0 and n > 0]
    if not usable or factor <= 0:
        return None
    return ScalingCurve(tuple(n for n, _ in usable), tuple(rate for _, rate in usable))


def iteration_at(job: Job, curve: ScalingCurve, now_s: float) -> float:
    """How far the job is: its last report, carried on at the cautious speed for a little while."""
    if not job.training:
        return float(job.iteration)
    rate = curve.throughput(len(job.gpus))
    if job.iterations_per_s is not None:
        rate = min(rate, job.iterations_per_s)
    return job.iteration + rate * min(max(now_s - job.progressed_at_s, 0.0), EXTRAPOLATE_S)


def to_schedule(state: PoolState, job: Job, now_s: float) -> SchedulableJob | None:
    """The job as the algorithms see it; None while nothing is known of its speed here.

    A share that was decided but does not train yet is held already, and stalls for what its start still takes.
    """
    spec = spec_of(job)
    curve = known_curve(state, spec)
    if curve is None:
        return None
    cost_s = resize_cost_s(state)
    share = 0 if job.broken else len(job.gpus)
    stalled_until_s = -math.inf
    if share and not job.training:
        stalled_until_s = job.placed_at_s + cost_s
    return SchedulableJob(
        job_id=job.job_id,
        curve=curve,
        remaining_iterations=max(spec.max_iterations - iteration_at(job, curve, now_s), 1.0),
        deadline_s=planned_deadline_s(state, job.deadline_s) if job.promised else math.inf,
        current_num_gpus=share,
        resize_cost_s=cost_s,
        stalled_until_s=stalled_until_s,
    )


def newcomer(
    state: PoolState, job_id: str, spec: JobSpec, curve: ScalingCurve, deadline_s: float | None
) -> SchedulableJob:
    """A job that asks to come in."""
    return SchedulableJob(
        job_id=job_id,
        curve=curve,
        remaining_iterations=float(spec.max_iterations),
        deadline_s=planned_deadline_s(state, deadline_s),
        resize_cost_s=resize_cost_s(state),
    )


def resize_cost_s(state: PoolState) -> float:
    """Seconds without progress at a change of share: as configured, or as seen if starts are slower here."""
    return max(state.config.resize_cost_s, state.start_cost_s)


def planned_deadline_s(state: PoolState, deadline_s: float | None) -> float:
    """The end to plan for: a little before the deadline, for the last evaluation and the last word."""
    return math.inf if deadline_s is None else deadline_s - state.config.deadline_slack_s


def admission_plan(state: PoolState, now_s: float, *, num_gpus: int | None = None) -> AdmissionPlan:
    """All promises of the pool, scheduled anew from now on."""
    promised = [job for job in state.live_jobs.values() if job.promised]
    jobs = [seen for job in promised if (seen := to_schedule(state, job, now_s)) is not None]
    kept = {job.job_id: as_schedule(job.planned_share) for job in promised}
    return AdmissionPlan.build(jobs, state.num_gpus if num_gpus is None else num_gpus, now_s, kept)


def as_schedule(steps: ShareSchedule) -> Schedule:
    """A promised schedule, as the algorithms hold it."""
    return tuple(Segment(*segment) for segment in segments(steps))


def as_steps(schedule: Schedule) -> ShareSchedule:
    """A schedule, as events carry it."""
    return tuple(map(float, chain.from_iterable(schedule)))
