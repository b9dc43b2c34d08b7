"""Jobs of a trace, for tests."""

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.workload import TraceJob

ONE_GPU = ScalingCurve((1,), (1.0,))


def job(
    job_id: str,
    iterations: int,
    submitted_at_s: float,
    deadline_s: float | None,
    curve: ScalingCurve = ONE_GPU,
    job_class: JobClass = JobClass.SLO,
) -> TraceJob:
    """A job with the fields that a schedule depends on."""
    return TraceJob(
        job_id=job_id,
        submitted_at_s=submitted_at_s,
        num_iterations=iterations,
        model_name="model",
        global_batch_size=64,
        deadline_s=deadline_s,
        job_class=job_class,
        curve=curve,
    )
