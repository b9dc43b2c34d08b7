"""Filling one job into the GPUs that are free: its share at each instant, every change of share charged.

For a cap j, the job takes at each instant the largest level <= min(j, free GPUs), as in Algorithm 1, but over the
pieces of a step function instead of slots, and without moves that cost more than they bring. Several jobs together
are the business of `admission_plan`.
"""

import math
from dataclasses import dataclass

from shared.scheduling.free_profile import FreeProfile, Schedule, Segment
from shared.scheduling.scaling_curve import ScalingCurve

TIME_TOLERANCE_S = 1e-6
"""The one tolerance of the model: a job is on time if it ends at most this long after its deadline, and a stretch
must bring more than this to be held. It absorbs the rounding of sums of floats, and is always measured against
the deadline that was promised, so it never adds up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulableJob:
    """What the scheduler needs to know of a job at one instant."""

    job_id: str
    curve: ScalingCurve
    remaining_iterations: float
    deadline_s: float = math.inf  # inf: none
    current_num_gpus: int = 0
    resize_cost_s: float = (
        0.0  # without progress, at each change to another share that is not 0 (also from 0)
    )
    stalled_until_s: float = -math.inf  # no progress before: a resize is under way

    @property
    def on_time_s(self) -> float:
        """The last instant that counts as on time."""
        return self.deadline_s + TIME_TOLERANCE_S


def finish_s(schedule: Schedule) -> float:
    """When the job of `schedule` ends; -inf for the empty schedule of a job with nothing left to do."""
    return schedule[-1].end_s if schedule else -math.inf


def gpu_seconds(schedule: Schedule) -> float:
    """GPUs held times how long, stalls included."""
    return sum((end_s - start_s) * num_gpus for start_s, end_s, num_gpus in schedule)


def remainder(schedule: Schedule, now_s: float) -> Schedule:
    """What of `schedule` lies after `now_s`."""
    return tuple(
        Segment(max(start_s, now_s), end_s, num_gpus)
        for start_s, end_s, num_gpus in schedule
        if end_s > now_s
    )


def share_at(schedule: Schedule, at_s: float) -> int:
    """GPUs held at an instant."""
    return next((segment.num_gpus for segment in schedule if segment.start_s <= at_s < segment.end_s), 0)


def overlaps(schedule: Schedule, span: tuple[float, float]) -> bool:
    """Whether `schedule` lies at least partly, gaps counted, between two instants."""
    return bool(schedule) and schedule[0].start_s < span[1] and schedule[-1].end_s > span[0]


def minimum_satisfactory_share(job: SchedulableJob, free: FreeProfile, now_s: float) -> Schedule | None:
    """The filling with the smallest cap that ends by the deadline, or None.

    A job that would hold fewer GPU-seconds by staying at its present share (it saves a resize) stays.
    Source: ElasticFlow, Algorithm 1, lines 11-22.
    """
    free = free.after(now_s)
    for cap in job.curve.levels:
        schedule = fill(job, free, cap, job.on_time_s)
        if schedule is not None:
            break
    else:
        return None
    if job.current_num_gpus > cap and job.current_num_gpus in job.curve.levels:
        unmoved = fill(job, free, job.current_num_gpus, job.on_time_s)
        if unmoved is not None and gpu_seconds(unmoved) < gpu_seconds(schedule):
            return unmoved
    return schedule


def fastest_schedule(job: SchedulableJob, free: FreeProfile, now_s: float) -> Schedule | None:
    """The filling that ends first, whatever the deadline (on fewer GPUs if two tie); None if none ends."""
    free = free.after(now_s)
    best, best_s = None, math.inf
    most = max(free.num_gpus_B)
    for cap in reversed(job.curve.levels):
        if cap <= most:
            schedule = fill(job, free, cap, best_s)
            if schedule is not None:
                best, best_s = schedule, finish_s(schedule)
    return best


def fill(job: SchedulableJob, free: FreeProfile, cap: int, by_s: float) -> Schedule | None:
    """The schedule with at most `cap` GPUs (a level of the job), or None if it ends after `by_s`."""
    left = job.remaining_iterations
    level_by_bits, rates = job.curve.level_by_bits[cap], job.curve.rate_by_num_gpus
    next_level, cost_s = job.curve.next_level, job.resize_cost_s
    if left <= rates[job.curve.levels[0]] * TIME_TOLERANCE_S:
        return ()  # done, but for the rounding
    starts_s, free_counts = free.starts_s_B, free.num_gpus_B
    top_rate, num_pieces, piece = rates[cap], len(starts_s), 0
    share, ready_s = job.current_num_gpus, job.stalled_until_s
    segments: list[Segment] = []
    while piece < num_pieces:
        start_s = starts_s[piece]
        if left > top_rate * (by_s - start_s):
            return None
        target = level_by_bits[free_counts[piece].bit_length()]
        too_many = next_level[target] if target < cap else math.inf
        piece += 1
        while piece < num_pieces and target <= free_counts[piece] < too_many:
            piece += 1
        end_s = starts_s[piece] if piece < num_pieces else math.inf
        if target != share:
            stretch_s = end_s - start_s
            if 0 < share < target and _better_unmoved(
                job, target, share, left, max(ready_s - start_s, 0.0), stretch_s
            ):
                target = share
            elif stretch_s <= cost_s + TIME_TOLERANCE_S:
                target = 0
            elif target:
                ready_s = start_s + cost_s
        if target:
            working_s = ready_s if ready_s > start_s else start_s
            done_s = working_s + left / rates[target]
            if done_s <= end_s:
                _append(segments, start_s, done_s, target)
                return tuple(segments) if done_s <= by_s else None
            if end_s > working_s:
                left -= rates[target] * (end_s - working_s)
            _append(segments, start_s, end_s, target)
        share = target
    return None


def finish_under(job: SchedulableJob, schedule: Schedule, now_s: float) -> float:
    """When `job`, as it stands now, ends by holding `schedule`; inf if the schedule ends before the job."""
    left, share, ready_s, previous_end_s = (
        job.remaining_iterations,
        job.current_num_gpus,
        job.stalled_until_s,
        now_s,
    )
    if left <= 0:
        return -math.inf
    for start_s, end_s, num_gpus in schedule:
        if num_gpus != share or start_s > previous_end_s:
            ready_s = start_s + job.resize_cost_s
        working_s, rate = max(start_s, ready_s), job.curve.throughput(num_gpus)
        if left <= rate * (end_s - working_s + TIME_TOLERANCE_S):
            return min(working_s + left / rate, end_s)
        left -= rate * max(end_s - working_s, 0.0)
        share, previous_end_s = num_gpus, end_s
    return math.inf


def _better_unmoved(
    job: SchedulableJob, target: int, share: int, left: float, stalled_s: float, stretch_s: float
) -> bool:
    """Whether a job that could have `target` GPUs for `stretch_s` gets further on the fewer that it has."""
    rates = job.curve.rate_by_num_gpus
    staying_rate = rates.get(share, 0.0)
    if staying_rate <= 0:
        return False
    compared_s = min(stretch_s, stalled_s + left / staying_rate)
    return rates[target] * (compared_s - job.resize_cost_s) <= staying_rate * (compared_s - stalled_s)


def _append(segments: list[Segment], start_s: float, end_s: float, num_gpus: int) -> None:
    if segments and segments[-1].num_gpus == num_gpus and segments[-1].end_s == start_s:
        start_s = segments.pop().start_s
    segments.append(Segment(start_s, end_s, num_gpus))
