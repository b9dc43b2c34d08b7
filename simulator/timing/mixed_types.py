"""A job on GPUs of several types at once: how fast it trains, and the step times that let the services predict it.

The rounds of `simulator/heterogeneous` and the trace-driven simulation share this model, so that mixes cost both the
same. It is an assumption: throughput tables have no steps of GPUs of several types.
"""

from collections.abc import Sequence
from itertools import pairwise

from elasticflow.shared.messages.single_gpu_step_times import SingleGpuStepTimes, counts_to_measure
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve

# An input of this model, no claim: the part of the sum of both throughputs that 2 V100 and 8 P100 of VirtualFlow reach.
# It follows from VF-F13 of benchmarks/papers/claims.toml, and a test compares them: no benchmark is imported here.
MEASURED_MIX_EFFICIENCY = 0.736
MOST_VIRTUAL_NODES = 128  # of a simulated job; a split over a few GPUs of any speeds balances them within a few percent


def mix_throughput(throughputs: Sequence[float], mix_efficiency: float | None) -> float:
    """Iterations/s on GPUs of all these types at once, from the throughput on each type alone.

    mix_efficiency: the part of the sum that a mix reaches, in (0, 1]; one type alone loses nothing.
    """
    return sum(throughputs) * (1.0 if len(throughputs) == 1 or mix_efficiency is None else mix_efficiency)


def throughput_in_mix(curve: ScalingCurve, num_gpus: int) -> float:
    """Iterations/s of any number of GPUs of one type: linear between levels, and that of the last level beyond it."""
    points = ((0, 0.0), *curve.rate_by_num_gpus.items())
    for (low, slower), (high, faster) in pairwise(points):
        if low < num_gpus <= high:
            return slower + (faster - slower) * (num_gpus - low) / (high - low)
    return curve.iterations_per_s_L[-1] if num_gpus else 0.0


def single_gpu_steps(iterations_per_s: float, global_batch_size: int, mix_efficiency: float) -> SingleGpuStepTimes:
    """The profile of one GPU on which the services predict that efficiency: a part of the batch, as a GPU has it in a
    mix, takes 1 / mix_efficiency times its part of the step, and at most the whole one.

    iterations_per_s: of one GPU with the whole batch.
    """
    num_virtual_nodes = min(global_batch_size, MOST_VIRTUAL_NODES)
    return SingleGpuStepTimes(
        num_virtual_nodes=num_virtual_nodes,
        step_s_by_virtual_nodes={
            count: min(count / num_virtual_nodes / mix_efficiency, 1.0) / iterations_per_s
            for count in counts_to_measure(num_virtual_nodes)
        },
        reproducible="fast",
    )
