"""Jobs that are not as fast as their curves say: promises are kept with the confidence that was asked for."""

from functools import cache

import pytest

from shared.errors import BadSettings
from simulator.trace_driven.pool import ClusterShape
from simulator.trace_driven.result import Result
from simulator.trace_driven.speed_noise import SpeedNoise
from simulator.trace_driven.trial import Trial
from simulator.workload.bundled import bundled_throughputs
from simulator.workload.generator import Recipe, generate
from simulator.workload.throughputs import read_throughputs

CLUSTER = ClusterShape(num_nodes=4, gpus_per_node=4)
RECIPE = Recipe(
    num_jobs=60, cluster_gpus=16, load=1.5, median_gpu_hours=0.5, gpu_hours_sigma=1.0, tightness=(0.7, 1.5)
)


@cache
def results(confidence: float | None, sigma: float = 0.1) -> tuple[Result, ...]:
    """Eight workloads, each with its own noise."""
    throughputs = read_throughputs(bundled_throughputs())
    trials = [
        Trial(
            workload=generate(RECIPE, throughputs, seed),
            cluster=CLUSTER,
            policy="selective",
            confidence=confidence,
            noise=SpeedNoise(seed=seed, sigma=sigma),
        )
        for seed in range(8)
    ]
    return tuple(trial.simulation().run() for trial in trials)


def broken(confidence: float | None) -> float:
    """The share of promises that were broken."""
    made = sum(result.num_admitted for result in results(confidence))
    assert made > 300
    return sum(result.num_late() for result in results(confidence)) / made


def test_with_a_confidence_no_more_promises_break_than_it_allows() -> None:
    assert broken(None) > 0.03
    assert broken(0.9) <= 0.1
    assert broken(0.99) <= 0.01


def test_confidence_is_paid_for_with_admissions_and_not_with_many() -> None:
    admitted = {
        confidence: sum(result.num_admitted for result in results(confidence)) for confidence in (None, 0.99)
    }
    assert 0.8 * admitted[None] < admitted[0.99] < admitted[None]


def test_noise_comes_from_its_seed() -> None:
    workload = results(None)[0].workload
    first, again = (SpeedNoise(seed=1, sigma=0.1).speeds(workload) for _ in range(2))
    assert first == again
    assert first != SpeedNoise(seed=2, sigma=0.1).speeds(workload)


@pytest.mark.parametrize("sigma", [0.0, -0.1, 1.5, float("nan")])
def test_absurd_noise_is_refused(sigma: float) -> None:
    with pytest.raises(BadSettings, match="speed noise"):
        SpeedNoise(seed=0, sigma=sigma)
