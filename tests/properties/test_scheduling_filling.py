"""A job filled into any availability profile ends as early as brute force finds, checked in exact arithmetic."""

import math
from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.gpus import ShareSegment
from elasticflow.shared.scheduling.availability.availability_profile import (
    MAX_SEGMENTS,
    AvailabilityProfile,
    ScratchMemory,
    Segments,
    empty_availability_profile,
)
from elasticflow.shared.scheduling.availability.fill import SLACK_S, Limits, fill, gpu_seconds, minimum_share
from elasticflow.shared.scheduling.jobs.job_table import JobTable, SchedulableJob, Schedule
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from tests.support.exact_replay import earliest_end_s, exact_end_s, is_on_time
from tests.support.example_specs import examples
from tests.support.strategies import schedulable_jobs

ROUNDING_S = 1e-5  # of times near 1.8e9 s, which lie 2.4e-7 s apart
Pieces = list[tuple[float, int]]
WORK = ScratchMemory().arrays(1024)
MEMORY, OUT = WORK.memory, WORK.found


@st.composite
def free_pieces(draw: st.DrawFn, max_size: int = 5) -> Pieces:
    """The times from which numbers of GPUs are free; the last piece has no end."""
    now_s = draw(st.sampled_from([0.0, 1_800_000_000.0]))
    lengths_s = draw(st.lists(st.sampled_from([0.5, 3.0, 20.0, 100.0, 400.0]), max_size=max_size - 1))
    size = len(lengths_s) + 1
    counts = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 8]), min_size=size, max_size=size))
    starts_s = [now_s + sum(lengths_s[:number]) for number in range(len(counts))]
    return list(zip(starts_s, counts, strict=True))


@st.composite
def instances(draw: st.DrawFn) -> tuple[SchedulableJob, Pieces]:
    """A job of at most three levels, and where it could go."""
    pieces = draw(free_pieces())
    job = draw(schedulable_jobs(now_s=pieces[0][0], max_levels=3, max_gpus=8))
    return job, pieces


def profile_of(pieces: Pieces) -> AvailabilityProfile:
    profile = empty_availability_profile(16 * MAX_SEGMENTS)
    for number, (start_s, free) in enumerate(pieces):
        profile.start_B[number], profile.free_B[number] = start_s, free
    profile.size[0] = len(pieces)
    return profile


def filled(job: SchedulableJob, pieces: Pieces, cap: int, by_s: float = math.inf) -> Schedule | None:
    """What `fill` finds."""
    jobs = JobTable.of([job]).jobs
    return _schedule(OUT, fill(profile_of(pieces), jobs, 0, Limits(cap, by_s), OUT, MEMORY))


def least_share(job: SchedulableJob, pieces: Pieces, by_s: float) -> Schedule | None:
    """What `minimum_share` finds."""
    jobs = JobTable.of([job]).jobs
    return _schedule(OUT, minimum_share(profile_of(pieces), jobs, 0, by_s, WORK))


def _schedule(out: Segments, count: int) -> Schedule | None:
    if count < 0:
        return None
    return tuple(ShareSegment(float(out.start_M[k]), float(out.end_M[k]), int(out.num_gpus_M[k])) for k in range(count))


def assert_free(schedule: Schedule, pieces: Pieces) -> None:
    """No more is held than is free."""
    ends_s = [*(start_s for start_s, _ in pieces[1:]), math.inf]
    for held in schedule:
        for (start_s, free), end_s in zip(pieces, ends_s, strict=True):
            if held.start_s < end_s and start_s < held.end_s:
                assert held.num_gpus <= free


def end_with_slack_s(job: SchedulableJob, pieces: Pieces, cap: int) -> Fraction | None:
    """The end that brute force finds for the work that `fill` plans for: a little more than is left."""
    slack = Fraction(SLACK_S) * Fraction(job.curve.throughput(job.curve.max_useful_gpus))
    return earliest_end_s(job, pieces, job.curve.levels[cap], Fraction(job.remaining_iterations) + slack)


@examples(250)
@given(instances())
def test_a_fill_ends_as_early_as_any_choice_of_levels_does(instance: tuple[SchedulableJob, Pieces]) -> None:
    job, pieces = instance
    for cap in range(len(job.curve.levels)):
        best_s, found = end_with_slack_s(job, pieces, cap), filled(job, pieces, cap)
        assert (best_s is None) == (found is None)
        if best_s is None or found is None:
            continue
        assert abs(Fraction(found[-1].end_s) - best_s) <= ROUNDING_S
        really_s = exact_end_s(job, found, pieces[0][0])
        assert really_s is not None, "exact arithmetic finds the schedule too short"
        assert really_s <= found[-1].end_s
        assert max(segment.num_gpus for segment in found) <= job.curve.levels[cap]
        assert_free(found, pieces)


@examples(150)
@given(instances(), st.floats(-0.5, 30.0))
def test_a_fill_is_refused_if_and_only_if_it_would_end_too_late(
    instance: tuple[SchedulableJob, Pieces], later_s: float
) -> None:
    job, pieces = instance
    for cap in range(len(job.curve.levels)):
        fastest = filled(job, pieces, cap)
        if fastest is None:
            assert filled(job, pieces, cap, pieces[0][0] + 1e6) is None
            continue
        end_s = fastest[-1].end_s
        assert filled(job, pieces, cap, end_s + ROUNDING_S) == fastest
        assert filled(job, pieces, cap, end_s - ROUNDING_S) is None
        by_s = end_s + later_s
        if abs(later_s) > ROUNDING_S:
            assert filled(job, pieces, cap, by_s) == (fastest if later_s > 0 else None)


@examples(100)
@given(instances(), st.integers(0, 2), st.floats(0.0, 20.0))
def test_the_minimum_share_has_the_smallest_cap_that_is_enough(
    instance: tuple[SchedulableJob, Pieces], cap_to_try: int, later_s: float
) -> None:
    job, pieces = instance
    tried_s = end_with_slack_s(job, pieces, min(cap_to_try, len(job.curve.levels) - 1))
    by_s = pieces[0][0] + 100.0 if tried_s is None else float(tried_s) + later_s + ROUNDING_S
    best_s = [end_with_slack_s(job, pieces, cap) for cap in range(len(job.curve.levels))]
    enough = [cap for cap, end_s in enumerate(best_s) if end_s is not None and end_s + ROUNDING_S < by_s]
    near = [end_s for end_s in best_s if end_s is not None and abs(end_s - Fraction(by_s)) <= 2 * ROUNDING_S]
    share = least_share(job, pieces, by_s)
    if near:  # rounding may decide it either way
        return
    if not enough:
        assert share is None
        return
    smallest = filled(job, pieces, enough[0], by_s)
    assert share is not None
    assert smallest is not None
    assert is_on_time(replace(job, deadline_s=by_s), share, pieces[0][0])
    assert_free(share, pieces)
    if share != smallest:  # it stays at the share it has, because that takes fewer GPU-seconds
        assert job.current_num_gpus > job.curve.levels[enough[0]]
        assert max(segment.num_gpus for segment in share) <= job.current_num_gpus
        assert _held(share) < _held(smallest)


def _held(schedule: Schedule) -> float:
    return sum((end_s - start_s) * num_gpus for start_s, end_s, num_gpus in schedule)


@examples(200)
@given(
    instances(),
    st.floats(0.0, 100.0),
    st.floats(0.01, 1.0),
    st.lists(st.integers(0, 2), min_size=5, max_size=5),
)
def test_more_time_less_work_or_more_gpus_never_turn_a_yes_into_a_no(
    instance: tuple[SchedulableJob, Pieces], later_s: float, part: float, more_B: list[int]
) -> None:
    job, pieces = instance
    by_s = min(job.deadline_s, pieces[0][0] + 1e6)
    if least_share(job, pieces, by_s) is None:
        return
    fewer = replace(job, remaining_iterations=part * job.remaining_iterations)
    more = [(start_s, free + more_B[number]) for number, (start_s, free) in enumerate(pieces)]
    assert least_share(job, pieces, by_s + later_s) is not None
    assert least_share(fewer, pieces, by_s + ROUNDING_S) is not None
    assert least_share(job, more, by_s + ROUNDING_S) is not None


@given(schedulable_jobs(fresh=True))
def test_the_lower_bound_of_gpu_seconds_is_one(job: SchedulableJob) -> None:
    window_s = min(job.deadline_s, 4000.0)
    jobs = JobTable.of([job]).jobs
    count = minimum_share(profile_of([(0.0, 16)]), jobs, 0, window_s, WORK)
    if count >= 0:
        bound = job.curve.least_gpu_seconds(job.remaining_iterations, window_s)
        assert gpu_seconds(OUT, count) >= bound * (1.0 - 1e-9)


@given(rate=st.floats(0.1, 50.0), iterations=st.integers(1, 100), now_s=st.sampled_from([0.0, 1000.5, 1.8e9]))
@examples(200)
def test_no_segment_is_empty_where_others_come_as_the_job_ends(rate: float, iterations: int, now_s: float) -> None:
    curve = ScalingCurve((2, 8), (rate, 2.6 * rate))
    job = SchedulableJob(job_id="job", curve=curve, remaining_iterations=float(iterations))
    (alone,) = filled(job, [(now_s, 8)], 1) or ()
    schedule = filled(job, [(now_s, 8), (alone.end_s, 2)], 1)
    assert schedule is not None
    assert all(segment.start_s < segment.end_s for segment in schedule)
