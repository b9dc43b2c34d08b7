"""For any measurements in any order, the curve of a range is its part of the whole curve."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpus import GpuRange
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.jobs.scheduler_view import known_curve, profile_known
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.snapshot_encoding import dump, load
from testbed.histories import LINEAR, NOW_S, History, spec

BOUNDS = st.tuples(st.integers(1, 9), st.none() | st.integers(1, 9))
RANGES = BOUNDS.map(lambda ends: spec(min_gpus=ends[0], max_gpus=ends[1]))
SIZES = st.sampled_from((1, 2, 4, 8))
RATES = st.sampled_from((0.0, 1.0, 2.0, 5.0))


def measured(num_gpus: int, rate: float, at_s: int) -> events.ThroughputMeasured:
    return events.ThroughputMeasured(
        profile_key="linear/b64",
        num_gpus=num_gpus,
        iterations_per_s=rate,
        job_id="a",
        generation=1,
        source="training",
        at_s=NOW_S + at_s,
    )


def completed(rates: dict[int, float]) -> events.ProfileCompleted:
    return events.ProfileCompleted(profile_key="linear/b64", iterations_per_s=rates, at_s=NOW_S)


def admitted(job_id: str, job_spec: JobSpec) -> events.JobAdmitted:
    return events.JobAdmitted(
        job_id=job_id,
        tenant="lab",
        spec=job_spec,
        deadline_s=NOW_S + 100.0,
        minimum_satisfactory_share=(),
        gpu_seconds=1.0,
        at_s=NOW_S,
    )


HAPPENINGS = st.one_of(
    st.builds(measured, SIZES, RATES, st.integers(0, 50)),
    st.builds(completed, st.dictionaries(SIZES, RATES)),
    st.builds(admitted, st.sampled_from("abcdef"), RANGES),
)


def history_of(happenings: list[Any]) -> PoolState:
    return History().nodes(8).then(*happenings).state


@given(st.lists(HAPPENINGS, max_size=12))
def test_the_curve_of_a_range_is_its_part_of_the_whole(happenings: list[Any]) -> None:
    state = history_of(happenings)
    for job in state.live_jobs.values():
        assert job.spec is not None
        whole, part = state.curves.get(job.spec.measured_key), state.curves.get(job.spec.profile_key)
        if job.spec.profile_key == job.spec.measured_key and whole is None:
            continue  # nothing is known, nor asked for in parts
        assert whole is not None
        assert part is not None
        within = {n: r for n, r in whole.iterations_per_s.items() if job.spec.gpu_range.allows(n)}
        assert part.iterations_per_s == within
        assert part.dataset_size == whole.dataset_size
        curve = known_curve(state, job.spec)
        assert curve is None or all(job.spec.gpu_range.allows(level) for level in curve.num_gpus_L)
        if profile_known(state, job.spec) and any(within.values()):
            assert curve is not None


@given(st.lists(HAPPENINGS, max_size=12), RANGES)
def test_to_judge_a_range_changes_nothing_else(happenings: list[Any], asked: JobSpec) -> None:
    before = history_of(happenings)
    state = with_profile(before, asked)
    assert with_profile(state, asked) is state
    others = {key: curve for key, curve in state.curves.items() if key in before.curves and not curve.parts}
    assert all(before.curves[key] == curve for key, curve in others.items())
    assert load(dump(state)) == state


@given(st.integers(1, 100), st.none() | st.integers(1, 100))
def test_a_range_contains_powers_of_two(low: int, high: int | None) -> None:
    gpu_range = GpuRange.of(low, high)
    between = {size for size in (*LINEAR, 16, 32, 64) if low <= size and (high is None or size <= high)}
    assert {size for size in (*LINEAR, 16, 32, 64) if gpu_range.allows(size)} == between
    if not gpu_range.is_empty:
        assert GpuRange.of(*gpu_range) == gpu_range
