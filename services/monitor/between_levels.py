"""Jobs on a number of GPUs that no plan knows: survivors of a loss train on, however many they are (docs/adr/0025).

Plans know the levels of a scaling curve, and count on no progress between them. Whether such a job is late is judged
here, by what it does.
"""
# pyright: strict

from bisect import bisect_left

from shared.messages.job_state import Job
from shared.messages.pool_state import spec_of
from shared.scheduling.scaling_curve import ScalingCurve


def is_in_time(job: Job, curve: ScalingCurve, deadline_s: float, now_s: float) -> bool:
    """Whether it is done by then on the GPUs on which it trains, if these are no level of its curve.

    deadline_s: as planned for. Its speed is what was reported, if that is less than the curve says.
    """
    num_gpus = _num_training(job)
    if num_gpus in curve.rate_by_num_gpus:
        return False  # the plan knows better
    rate = throughput_between(curve, num_gpus)
    if job.training and job.iterations_per_s is not None:
        rate = min(rate, job.iterations_per_s)
    left = spec_of(job).max_iterations - job.iteration
    return rate > 0 and now_s + left / rate <= deadline_s


def throughput_between(curve: ScalingCurve, num_gpus: int) -> float:
    """Iterations per second on the straight line between two levels; none below the first, no more above the last."""
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
    """GPUs whose workers take steps: the predecessor's while newcomers prepare; 0 if nobody does."""
    if job.training_generation is None:
        return 0
    return len(job.gpus if job.predecessor is None else job.predecessor.gpus)
