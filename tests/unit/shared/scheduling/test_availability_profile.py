"""The step function of free GPUs: taken, given back, swept."""

import numpy as np

from elasticflow.shared.scheduling.availability.availability_profile import (
    MAX_SEGMENTS,
    AvailabilityProfile,
    copy_into,
    empty_availability_profile,
    empty_schedules,
    piece_at,
    release,
    reserve,
    reset,
    sweep,
)
from elasticflow.shared.scheduling.jobs.job_table import JobTable, SchedulableJob, flat_schedules, write_schedules
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve

PROMISED = (1.0, 3.0, 2, 3.0, 5.0, 4)


def table(*schedules: tuple[float, ...]) -> JobTable:
    curve = ScalingCurve((1,), (1.0,))
    made = JobTable.of(
        SchedulableJob(job_id=f"job-{number}", curve=curve, remaining_iterations=1.0)
        for number in range(len(schedules))
    )
    for row, schedule in enumerate(schedules):
        made.write_schedule(row, schedule)
    return made


def constant(num_gpus: int, now_s: float = 0.0) -> AvailabilityProfile:
    profile = empty_availability_profile(64)
    reset(profile, now_s, num_gpus)
    return profile


def pieces(profile: AvailabilityProfile) -> list[tuple[float, int]]:
    return [(float(profile.start_B[k]), int(profile.free_B[k])) for k in range(profile.size[0])]


def test_reserving_cuts_the_profile_at_the_ends_of_each_segment() -> None:
    profile = constant(8)
    reserve(profile, table(PROMISED).schedules, 0)
    assert pieces(profile) == [(0.0, 8), (1.0, 6), (3.0, 4), (5.0, 8)]


def test_giving_back_restores_the_profile() -> None:
    profile, schedules = constant(8), table(PROMISED).schedules
    reserve(profile, schedules, 0)
    release(profile, schedules, 0)
    assert pieces(profile) == [(0.0, 8)]


def test_one_sweep_is_all_reservations_and_tells_of_more_promised_than_exists() -> None:
    jobs = table(PROMISED, (0.0, 3.5, 2), (2.0, 9.0, 1))
    one_by_one, swept = constant(8), empty_availability_profile(64)
    for row in range(3):
        reserve(one_by_one, jobs.schedules, row)
    assert sweep(swept, jobs.schedules, np.arange(3), 0.0, 8) == 1
    assert pieces(swept) == pieces(one_by_one)
    assert sweep(swept, jobs.schedules, np.arange(3), 0.0, 5) == -2
    assert sweep(swept, jobs.schedules, np.arange(0), 7.0, 5) == 5
    assert pieces(swept) == [(7.0, 5)]


def test_a_profile_knows_nothing_of_the_past() -> None:
    profile = constant(8, now_s=2.0)
    reserve(profile, table(PROMISED).schedules, 0)
    assert pieces(profile) == [(2.0, 6), (3.0, 4), (5.0, 8)]


def test_the_piece_of_an_instant() -> None:
    profile = constant(8)
    reserve(profile, table(PROMISED).schedules, 0)
    assert [piece_at(profile, at_s) for at_s in (0.0, 0.9, 1.0, 4.9, 5.0, 1e9)] == [0, 0, 1, 2, 3, 3]


def test_a_copy_shares_nothing() -> None:
    profile, other = constant(8), empty_availability_profile(64)
    copy_into(other, profile)
    reserve(profile, table(PROMISED).schedules, 0)
    assert pieces(other) == [(0.0, 8)]


def test_schedules_are_read_as_they_were_written_and_one_too_long_is_empty() -> None:
    schedules, longest = empty_schedules(4), tuple(float(number) for number in range(3 * MAX_SEGMENTS))
    written = [PROMISED, (), longest, (*longest, 0.0, 1.0, 1)]
    write_schedules(schedules, [3, 0, 1, 2], written)
    assert flat_schedules(schedules, [3, 0, 1, 2]) == [PROMISED, (), longest, ()]
    assert [type(number) for number in flat_schedules(schedules, [3])[0]] == 2 * [float, float, int]
    assert flat_schedules(schedules, []) == []
