"""The exact results of schedules, in fractions: without rounding, tolerance or code of the scheduler."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, Schedule


def exact_end_s(job: SchedulableJob, schedule: Schedule, now_s: float) -> Fraction | None:
    """When the job's last iteration ends on these GPUs, with the cost of each resize; None if it never ends.

    Asserts that the segments are disjoint, ordered and in the future, and that the job runs at each of their levels.
    """
    left, held = Fraction(job.remaining_iterations), job.current_num_gpus
    ready_s = _exact(job.stalled_until_s, now_s)
    until_s = Fraction(now_s)
    if left <= 0:
        return until_s
    for start_s, end_s, num_gpus in schedule:
        assert until_s <= start_s < end_s < math.inf
        assert num_gpus in job.curve.levels
        if num_gpus != held or start_s > until_s:
            ready_s = Fraction(start_s) + Fraction(job.resize_cost.seconds(num_gpus))
        rate = Fraction(job.curve.throughput(num_gpus))
        working_s = max(Fraction(start_s), ready_s)
        if working_s + left / rate <= end_s:
            return working_s + left / rate
        left -= rate * max(Fraction(end_s) - working_s, Fraction(0))
        held, until_s = num_gpus, Fraction(end_s)
    return None


def is_on_time(job: SchedulableJob, schedule: Schedule, now_s: float) -> bool:
    """Whether the schedule completes the job by its deadline."""
    ends_s = exact_end_s(job, schedule, now_s)
    return ends_s is not None and ends_s <= job.deadline_s and all(s.end_s <= job.deadline_s for s in schedule)


def most_gpus_at_once(schedules: Iterable[Schedule]) -> int:
    """The most GPUs that all jobs together hold at any instant."""
    changes = sorted(
        change
        for schedule in schedules
        for start_s, end_s, num_gpus in schedule
        for change in ((start_s, num_gpus), (end_s, -num_gpus))
    )
    most, held = 0, 0
    for _, by in changes:  # at one instant, released GPUs sort before acquired ones
        held += by
        most = max(most, held)
    return most


def advanced(job: SchedulableJob, schedule: Schedule, now_s: float, to_s: float) -> SchedulableJob:
    """The job at a later instant of its schedule. Its remaining iterations are rounded as in a report."""
    left, held = Fraction(job.remaining_iterations), job.current_num_gpus
    ready_s = _exact(job.stalled_until_s, now_s)
    until_s = now_s
    for start_s, end_s, num_gpus in schedule:
        if start_s > to_s:
            break
        if num_gpus != held or start_s > until_s:
            ready_s = Fraction(start_s) + Fraction(job.resize_cost.seconds(num_gpus))
        worked_s = Fraction(min(end_s, to_s)) - max(Fraction(start_s), ready_s)
        left -= Fraction(job.curve.throughput(num_gpus)) * max(worked_s, Fraction(0))
        held, until_s = num_gpus, end_s
    if until_s <= to_s:
        held = 0
    return SchedulableJob(
        job_id=job.job_id,
        curve=job.curve,
        remaining_iterations=float(max(left, Fraction(0))),
        deadline_s=job.deadline_s,
        current_num_gpus=held,
        resize_cost=job.resize_cost,
        stalled_until_s=float(ready_s) if held else -math.inf,
    )


def earliest_end_s(
    job: SchedulableJob,
    pieces: Sequence[tuple[float, int]],
    cap: int,
    left: Fraction,
) -> Fraction | None:
    """The earliest end of `left` iterations, over each choice of a level up to `cap`, or of none, in each piece.

    pieces: (start, number of free GPUs); the last one has no end. Brute force: five pieces and three levels have 1,024
    choices. A change within a piece is never better: the work done is convex in its instant.
    """
    levels = [level for level in job.curve.levels if level <= cap]
    now_s = pieces[0][0]
    ends_s = [*(Fraction(start_s) for start_s, _ in pieces[1:]), None]
    best: Fraction | None = None

    def choose(piece: int, held: int, ready_s: Fraction, left: Fraction) -> None:
        nonlocal best
        if piece == len(pieces):
            return
        start_s, free = Fraction(pieces[piece][0]), pieces[piece][1]
        end_s = ends_s[piece]
        if best is not None and best <= start_s:
            return
        for level in levels:
            if level > free:
                break
            starts_s = ready_s if level == held else start_s + Fraction(job.resize_cost.seconds(level))
            working_s = max(start_s, starts_s)
            rate = Fraction(job.curve.throughput(level))
            done_s = working_s + left / rate
            if end_s is None or done_s <= end_s:
                best = done_s if best is None else min(best, done_s)
            else:
                choose(piece + 1, level, starts_s, left - rate * max(end_s - working_s, Fraction(0)))
        choose(piece + 1, 0, start_s, left)

    choose(0, job.current_num_gpus, _exact(job.stalled_until_s, now_s), left)
    return best


def _exact(at_s: float, now_s: float) -> Fraction:
    return Fraction(max(at_s, now_s))


def share_at(schedule: Schedule, at_s: float) -> int:
    """GPUs held at an instant."""
    return next((segment.num_gpus for segment in schedule if segment.start_s <= at_s < segment.end_s), 0)
