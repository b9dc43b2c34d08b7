"""The interpolated throughput of a job on an unmeasured number of GPUs."""

import pytest

from elasticflow.services.monitor.policy import interpolated_throughput
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve

CURVE = ScalingCurve((2, 4, 8), (10.0, 16.0, 24.0))


@pytest.mark.parametrize(
    ("num_gpus", "iterations_per_s"),
    [(0, 0.0), (1, 0.0), (2, 10.0), (3, 13.0), (4, 16.0), (5, 18.0), (7, 22.0), (8, 24.0), (9, 24.0)],
)
def test_between_two_levels_the_speed_is_linear(num_gpus: int, iterations_per_s: float) -> None:
    assert interpolated_throughput(CURVE, num_gpus) == pytest.approx(iterations_per_s)
