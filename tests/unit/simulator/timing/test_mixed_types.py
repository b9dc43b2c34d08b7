"""Jobs on GPUs of several types: their throughput, and the step times with which the services predict it."""

import pytest

from elasticflow.shared.scheduling.heterogeneous.step_times import StepTimes
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    VirtualNodeSplit,
    split_virtual_nodes,
)
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.timing.training_time import mix_throughput, single_gpu_steps, throughput_in_mix

BATCH = 128


def test_one_type_loses_nothing_and_several_types_the_same_part() -> None:
    assert mix_throughput([3.0], 0.5) == 3.0
    assert mix_throughput([3.0, 5.0], 0.5) == 4.0


def test_between_two_levels_the_throughput_is_linear_and_beyond_the_last_one_it_is_constant() -> None:
    curve = ScalingCurve((2, 4), (6.0, 10.0))
    assert [throughput_in_mix(curve, num_gpus) for num_gpus in (1, 2, 3, 4, 9)] == [3.0, 6.0, 8.0, 10.0, 10.0]


@pytest.mark.parametrize("mix_efficiency", [0.736, 0.9, 1.0])
@pytest.mark.parametrize("slow_rate", [5.0, 2.0])
def test_the_services_predict_the_throughput_of_a_mix(mix_efficiency: float, slow_rate: float) -> None:
    """As far as it is measured at powers of two and midpoints; where the fast GPU alone is faster, it is alone."""
    rates = {"V100": 8.0, "P100": slow_rate}
    gpus = [_gpu(name, rate, mix_efficiency) for name, rate in rates.items()]
    split = split_virtual_nodes(gpus, BATCH, least_gain=0.0)
    assert isinstance(split, VirtualNodeSplit)
    mixed = mix_throughput(tuple(rates.values()), mix_efficiency)
    assert 1 / split.step_s == pytest.approx(max(mixed, 8.0), rel=0.03)
    assert set(split.counts) == (set(rates) if mixed > 8.0 else {"V100"})


def _gpu(name: str, rate: float, mix_efficiency: float) -> GpusOfType:
    steps = single_gpu_steps(rate, BATCH, mix_efficiency)
    times = StepTimes.of_measurements(name, steps.step_s_by_virtual_nodes)
    return GpusOfType(name=name, num_gpus=1, step_s_V=times.of_virtual_nodes(BATCH, steps.num_virtual_nodes))
