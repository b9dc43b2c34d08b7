"""Workloads of hypothesis, for pools with one GPU type and with several."""

from dataclasses import replace

from hypothesis import strategies as st

from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.workload.workload import TraceJob, Workload
from tests.support.strategies import scaling_curves
from tests.support.trace_jobs import job

COSTS = st.sampled_from([ResizeCost(), ResizeCost.flat(4.0), ResizeCost((1, 2, 8), (4.0, 6.0, 10.0))])
GPU_TYPES = ("V100", "P100", "K80")


@st.composite
def workloads(draw: st.DrawFn, max_jobs: int = 7) -> Workload:
    """Jobs close together in time, so that they contend."""
    jobs = list[TraceJob]()
    for number in range(draw(st.integers(1, max_jobs))):
        submitted_at_s = float(draw(st.integers(0, 60)))
        jobs.append(
            job(
                f"job-{number}",
                draw(st.integers(1, 400)),
                submitted_at_s,
                submitted_at_s + draw(st.integers(1, 80)),
                draw(scaling_curves()),
            )
        )
    return Workload.of("drawn", jobs)


@st.composite
def typed_workloads(draw: st.DrawFn, max_jobs: int = 7) -> Workload:
    """Each job has a model of its own, with a curve on the first type, and perhaps on each other type."""
    drawn = draw(workloads(max_jobs))
    jobs = [
        replace(
            each,
            model_name=each.job_id,
            measured_by_type={GPU_TYPES[0]: each.curve}
            | {name: draw(scaling_curves()) for name in GPU_TYPES[1:] if draw(st.booleans())},
        )
        for each in drawn.jobs
    ]
    return replace(drawn, jobs=tuple(jobs))


@st.composite
def num_gpus_by_type(draw: st.DrawFn) -> dict[str, int]:
    """Of one to three types."""
    return {name: draw(st.integers(1, 12)) for name in GPU_TYPES[: draw(st.integers(1, 3))]}
