"""Jobs on a number of GPUs between the levels of their curve: survivors of a loss train on any number (docs/adr/0025).

Plans use only the levels of a scaling curve, and count on no progress between them. Whether such a job is late is
decided here, from its interpolated or reported speed.
"""
# pyright: strict

from bisect import bisect_left

from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import spec_of


def is_in_time(job: Job, curve: ScalingCurve, deadline_s: float, now_s: float) -> bool:
    """Whether the job ends by then on its present GPUs, if their number is no level of its curve.

    deadline_s: planned. The speed is the reported one, if that is less than the interpolated one.
    """
    num_gpus = _num_training(job)
    if num_gpus in curve.rate_by_num_gpus:
        return False  # the plan decides
    rate = interpolated_throughput(curve, num_gpus)
    if job.training and job.iterations_per_s is not None:
        rate = min(rate, job.iterations_per_s)
    left = spec_of(job).max_iterations - job.iteration
    return rate > 0 and now_s + left / rate <= deadline_s


def interpolated_throughput(curve: ScalingCurve, num_gpus: int) -> float:
    """Iterations/s, linear between two levels; 0 below the first level, constant above the last."""
    above = bisect_left(curve.num_gpus_L, num_gpus)
    if above == len(curve.num_gpus_L):
        return curve.iterations_per_s_L[-1]
    rate = curve.iterations_per_s_L[above]
    if curve.num_gpus_L[above] == num_gpus:
        return rate
    if above == 0:
        return 0.0
    low, high = curve.num_gpus_L[above - 1], curve.num_gpus_L[above]
    slower = curve.iterations_per_s_L[above - 1]
    return slower + (rate - slower) * (num_gpus - low) / (high - low)


def _num_training(job: Job) -> int:
    """GPUs of its own type whose workers train: the previous generation's while joining workers prepare; 0 if none
    trains."""
    if job.training_generation is None:
        return 0
    before = job.previous_generation
    return len(job.own_gpus) if before is None else len(before.gpus) - before.num_added_gpus
