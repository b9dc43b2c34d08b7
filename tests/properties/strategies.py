"""Legal inputs for the properties: each strategy draws what its module accepts, odd shapes included."""

import math

from hypothesis import strategies as st

from shared.scheduling.progressive_filling import SchedulableJob
from shared.scheduling.scaling_curve import ScalingCurve
from shared.scheduling.topology import Node, Topology


@st.composite
def scaling_curves(draw: st.DrawFn, max_gpus: int = 32) -> ScalingCurve:
    """Curves with missing levels, standstills and falls, as memory limits and communication make them."""
    all_levels = [2**k for k in range(max_gpus.bit_length())]
    levels = draw(st.lists(st.sampled_from(all_levels), min_size=1, unique=True).map(sorted))
    rates = draw(
        st.lists(
            st.one_of(st.just(0.0), st.floats(0.125, 64.0)), min_size=len(levels), max_size=len(levels)
        ).filter(any)
    )
    return ScalingCurve(tuple(levels), tuple(rates))


@st.composite
def schedulable_jobs(
    draw: st.DrawFn, job_id: str = "job", now_s: float = 0.0, fresh: bool = False
) -> SchedulableJob:
    """Jobs from hopelessly tight to without a deadline; unless `fresh`, perhaps running or being resized."""
    curve = draw(scaling_curves())
    share = 0 if fresh else draw(st.sampled_from([0, *curve.num_gpus_L]))
    return SchedulableJob(
        job_id=job_id,
        curve=curve,
        remaining_iterations=draw(st.floats(0.5, 2000.0)),
        deadline_s=draw(st.one_of(st.floats(now_s + 1.0, now_s + 2000.0), st.just(math.inf))),
        current_num_gpus=share,
        resize_cost_s=draw(st.sampled_from([0.0, 1.0, 10.0, 100.0])),
        stalled_until_s=now_s + draw(st.sampled_from([-math.inf, 5.0])) if share else -math.inf,
    )


@st.composite
def job_lists(draw: st.DrawFn, max_size: int = 12, fresh: bool = False) -> list[SchedulableJob]:
    """Jobs with different ids."""
    size = draw(st.integers(0, max_size))
    return [draw(schedulable_jobs(job_id=f"job-{number:02d}", fresh=fresh)) for number in range(size)]


@st.composite
def topologies(draw: st.DrawFn, max_nodes: int = 6, max_gpus_per_node: int = 9) -> Topology:
    """Clusters of unlike nodes, some without a power of two of GPUs, in racks that nest or in none."""
    num_nodes = draw(st.integers(1, max_nodes))
    return Topology(
        tuple(
            Node(
                f"node-{number}",
                draw(st.integers(1, max_gpus_per_node)),
                sockets=draw(st.integers(1, 3)),
                rack=draw(st.sampled_from(["", "a", "a/1", "a/2", "b/1/x", "b/1/y"])),
            )
            for number in range(num_nodes)
        )
    )


@st.composite
def gpu_counts(draw: st.DrawFn, num_gpus: int, job_ids: tuple[str, ...]) -> dict[str, int]:
    """Powers of two, or 0, for some jobs; in all no more than `num_gpus`."""
    left, counts = num_gpus, dict[str, int]()
    for job_id in draw(st.permutations(job_ids)):
        fitting = [0] + [2**k for k in range(left.bit_length()) if 2**k <= left]
        counts[job_id] = draw(st.sampled_from(fitting))
        left -= counts[job_id]
    return counts
