"""A job that `selective` admits is also admitted with more time, less work or more GPUs."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_pricing import FEWEST_SUBMISSIONS, AdmissionPricing
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.pool import Demand
from tests.support.example_specs import examples

NUM_GPUS = 4
WINDOWS_S = [100.0 * 1.5**step for step in range(18)]  # to a day
CURVE = ScalingCurve((1, 2, 4), (1.0, 1.7, 2.5))
PRECISION = 1e-9

Asked = Sequence[tuple[int, float, float, float]]
Promised = Sequence[tuple[float, float]]

asked_for = st.lists(
    st.tuples(
        st.integers(FEWEST_SUBMISSIONS // 2, 40),
        st.sampled_from([0.0, 40.0, 300.0, 900.0, 3600.0]),
        st.sampled_from([20.0, 300.0, 1500.0, 8000.0]),
        st.sampled_from([200.0, 1500.0, 20_000.0]),
    ),
    min_size=2,
    max_size=4,
)
"""One time after another: how many asked, seconds between them, GPU-seconds and window; the last one now."""

promises = st.lists(st.tuples(st.sampled_from([100.0, 1500.0, 9000.0]), st.sampled_from([0.5, 0.9])), max_size=4)
"""Iterations, and the part of the window that they need on one GPU."""

iterations = st.sampled_from([100.0, 400.0, 1500.0, 5000.0, 2e4])


def job(count: float, deadline_s: float, job_id: str = "job") -> SchedulableJob:
    return SchedulableJob(job_id=job_id, curve=CURVE, remaining_iterations=count, deadline_s=deadline_s)


def pricing(asked: Asked, promised: Promised, num_gpus: int = NUM_GPUS) -> AdmissionPricing:
    demand, at_s = Demand(), -sum(count * gap_s for count, gap_s, _, _ in asked)
    for count, gap_s, gpu_seconds, window_s in asked:
        for _ in range(count):
            at_s += gap_s
            demand = demand.added(at_s, gpu_seconds, window_s)
    jobs = [job(count, count / part, f"promised-{number}") for number, (count, part) in enumerate(promised)]
    return AdmissionPricing(demand, (), 0.0, AdmissionPlan.build(jobs, num_gpus, 0.0))


@examples(300)
@given(asked_for, promises, iterations, st.floats(0.1, 1.0), st.integers(1, 5))
def test_nothing_displaces_more_with_more_time_less_work_or_more_gpus(
    asked: Asked, promised: Promised, count: float, part: float, more_gpus: int
) -> None:
    here, there = pricing(asked, promised), pricing(asked, promised, NUM_GPUS + more_gpus)
    before = None
    for window_s in WINDOWS_S:
        if count / CURVE.throughput(4) > window_s:
            continue
        displaced = here.displaced_promises(job(count, window_s))
        assert displaced >= -PRECISION
        assert before is None or displaced <= before + PRECISION, "more time"
        assert here.displaced_promises(job(part * count, window_s)) <= displaced + PRECISION, "less work"
        if not promised and count <= 0.2 * NUM_GPUS * window_s:  # there is space
            assert there.displaced_promises(job(count, window_s)) <= displaced + PRECISION, "more GPUs"
        before = displaced
