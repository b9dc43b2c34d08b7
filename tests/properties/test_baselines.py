"""Properties of every baseline, for any jobs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.simulator.baselines.baseline import Baseline, BaselineJob
from elasticflow.simulator.baselines.policy_catalogue import BASELINES
from tests.support.baselines_in_ticks import IN_TICKS
from tests.support.example_specs import examples

NOW_S = 1_000_000.0
few = examples(25)  # of each property and baseline: seventeen baselines are many


@st.composite
def curves(draw: st.DrawFn, num_gpus: int) -> ScalingCurve:
    """Of the levels that a pool has, with holes and falls."""
    levels = [2**k for k in range(num_gpus.bit_length())]
    chosen = sorted(draw(st.lists(st.sampled_from(levels), min_size=1, unique=True)))
    rates = draw(st.lists(st.floats(0.01, 50.0), min_size=len(chosen), max_size=len(chosen)))
    return ScalingCurve(tuple(chosen), tuple(rates))


@st.composite
def pools(draw: st.DrawFn) -> tuple[int, list[BaselineJob], float]:
    """GPUs, jobs that hold no more of them than there are, and an instant, at times the end of a lease."""
    num_gpus = draw(st.integers(1, 40))
    now_s = NOW_S + draw(st.sampled_from([0.0, 0.5, 30.0, 7 * 1200.0 - NOW_S % 1200.0]))
    free, jobs = num_gpus, list[BaselineJob]()
    for number in range(draw(st.integers(0, 10))):
        curve = draw(curves(num_gpus))
        held = draw(st.sampled_from([0, *(level for level in curve.num_gpus_L if level <= free)]))
        free -= held
        age_s = draw(st.floats(0.0, 50_000.0))
        iterations = draw(st.floats(1.0, 1e5))
        job_class = draw(st.sampled_from(JobClass))
        due_s = now_s + draw(st.floats(-1_000.0, 50_000.0)) if job_class.has_deadline else None
        jobs.append(
            BaselineJob(
                job_id=f"job-{number}",
                submitted_at_s=now_s - age_s,
                deadline_s=due_s,
                job_class=job_class,
                curve=curve,
                remaining_iterations=iterations * draw(st.floats(0.0, 1.0)),
                num_iterations=iterations,
                requested_num_gpus=draw(st.integers(1, 64)),
                attained_gpu_seconds=draw(st.sampled_from([0.0, 500.0, 10_000.0, 1e6])),
                current_num_gpus=held,
                held_since_s=now_s - age_s * draw(st.floats(0.0, 1.0)),
                num_resizes=draw(st.integers(0, 20)),
                weight=draw(st.sampled_from([1.0, 5.0, 10.0])),
                resize_cost=ResizeCost.flat(draw(st.sampled_from([0.0, 4.0, 20.0]))),
            )
        )
    return num_gpus, jobs, now_s


@pytest.mark.parametrize("baseline", BASELINES.values(), ids=BASELINES)
class TestEveryBaseline:
    @few
    @given(pools())
    def test_shares_are_levels_of_their_jobs_and_fit_into_the_pool(
        self, baseline: Baseline, pool: tuple[int, list[BaselineJob], float]
    ) -> None:
        num_gpus, jobs, now_s = pool
        answer = baseline.shares(jobs, num_gpus, now_s)
        by_id = {job.job_id: job for job in jobs}
        for job_id, share in answer.num_gpus_by_job.items():
            assert share in by_id[job_id].curve.num_gpus_L
        assert sum(answer.num_gpus_by_job.values()) <= num_gpus
        assert answer.valid_until_s > now_s

    @few
    @given(pools(), st.data())
    def test_the_order_in_which_jobs_are_named_does_not_matter(
        self, baseline: Baseline, pool: tuple[int, list[BaselineJob], float], data: st.DataObject
    ) -> None:
        num_gpus, jobs, now_s = pool
        shuffled = data.draw(st.permutations(jobs))
        assert baseline.shares(shuffled, num_gpus, now_s) == baseline.shares(jobs, num_gpus, now_s)
        if jobs:
            arriving_job = replace(jobs[0], job_id="arriving_job", current_num_gpus=0)
            admitted = [baseline.admits(arriving_job, some, num_gpus, now_s) for some in (jobs, shuffled)]
            assert admitted[0] == admitted[1]

    @few
    @given(pools())
    def test_no_gpu_is_idle_that_a_waiting_job_could_use(
        self, baseline: Baseline, pool: tuple[int, list[BaselineJob], float]
    ) -> None:
        """A rigid job can use its gang, an elastic one its fewest GPUs at least."""
        if baseline.name in IN_TICKS:
            return  # leaves GPUs idle until the next tick
        num_gpus, jobs, now_s = pool
        jobs = [replace(job, weight=1.0) for job in jobs]  # otherwise a greater weight keeps all others out
        answer = baseline.shares(jobs, num_gpus, now_s).num_gpus_by_job
        idle = num_gpus - sum(answer.values())
        waiting = [job for job in jobs if job.job_id not in answer]
        assert all(max(job.gang, job.curve.levels[0]) > idle for job in waiting)

    @few
    @given(pools())
    def test_a_job_alone_in_the_pool_runs(self, baseline: Baseline, pool: tuple[int, list[BaselineJob], float]) -> None:
        num_gpus, jobs, now_s = pool
        if baseline.name in IN_TICKS:
            now_s = NOW_S - NOW_S % 240.0  # a tick
        for job in jobs[:1]:
            alone = replace(job, current_num_gpus=0)
            assert baseline.shares([alone], num_gpus, now_s).num_gpus_by_job
