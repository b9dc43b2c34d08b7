"""Valid inputs for the properties, unusual ones included."""

import math

from hypothesis import strategies as st

from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve


@st.composite
def scaling_curves(draw: st.DrawFn, max_gpus: int = 32, max_levels: int | None = None) -> ScalingCurve:
    """Curves with missing levels, plateaus and decreases, as memory limits and communication cause them."""
    all_levels = [2**k for k in range(max_gpus.bit_length())]
    levels = draw(st.lists(st.sampled_from(all_levels), min_size=1, max_size=max_levels, unique=True).map(sorted))
    rates = draw(
        st.lists(st.one_of(st.just(0.0), st.floats(0.125, 64.0)), min_size=len(levels), max_size=len(levels)).filter(
            any
        )
    )
    return ScalingCurve(tuple(levels), tuple(rates))


def resize_costs() -> st.SearchStrategy[ResizeCost]:
    """Equal costs for all numbers of GPUs, or higher costs for more GPUs."""
    flat = st.sampled_from([0.0, 1.0, 10.0, 100.0]).map(ResizeCost.flat)
    return st.one_of(flat, st.just(ResizeCost((1, 4, 16), (2.0, 4.0, 9.5))))


@st.composite
def schedulable_jobs(
    draw: st.DrawFn,
    job_id: str = "job",
    now_s: float = 0.0,
    fresh: bool = False,
    max_gpus: int = 32,
    max_levels: int | None = None,
) -> SchedulableJob:
    """Jobs with deadlines from impossible to none. Unless `fresh`, some run or are being resized."""
    curve = draw(scaling_curves(max_gpus, max_levels))
    share = 0 if fresh else draw(st.sampled_from([0, *curve.num_gpus_L]))
    cost = draw(resize_costs())
    return SchedulableJob(
        job_id=job_id,
        curve=curve,
        remaining_iterations=draw(st.floats(0.5, 2000.0)),
        deadline_s=draw(st.one_of(st.floats(now_s + 1.0, now_s + 2000.0), st.just(math.inf))),
        current_num_gpus=share,
        resize_cost=cost,
        stalled_until_s=now_s + draw(st.sampled_from([0.0, 0.25, 1.0])) * cost.seconds(share),
    )


@st.composite
def job_lists(draw: st.DrawFn, max_size: int = 12, fresh: bool = False) -> list[SchedulableJob]:
    """Jobs with different ids."""
    size = draw(st.integers(0, max_size))
    return [draw(schedulable_jobs(job_id=f"job-{number:02d}", fresh=fresh)) for number in range(size)]
