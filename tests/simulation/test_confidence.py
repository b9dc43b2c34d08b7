"""Jobs whose speed differs from their curve: promises are kept with the configured confidence."""

from functools import cache

import pytest

from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.trace.failures_and_speed_noise import SpeedNoise
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs

CLUSTER = ClusterShape(num_nodes=4, gpus_per_node=4)
RECIPE = Recipe(num_jobs=60, cluster_gpus=16, load=1.5, median_gpu_hours=0.5, gpu_hours_sigma=1.0, tightness=(0.7, 1.5))


@cache
def results(confidence: float | None, sigma: float = 0.1) -> tuple[Result, ...]:
    """Eight workloads, each with its own noise."""
    throughputs = read_throughputs(bundled_throughputs())
    simulated_runs = [
        SimulatedRun(
            workload=generate(RECIPE, throughputs, seed),
            cluster=CLUSTER,
            policy="selective",
            confidence=confidence,
            noise=SpeedNoise(seed=seed, sigma=sigma),
        )
        for seed in range(8)
    ]
    return tuple(simulated_run.simulation().run() for simulated_run in simulated_runs)


def broken(confidence: float | None) -> float:
    """The share of promises that were broken."""
    made = sum(result.num_admitted for result in results(confidence))
    assert made > 300
    return sum(result.num_late() for result in results(confidence)) / made


def test_with_a_confidence_no_more_promises_break_than_it_allows() -> None:
    assert broken(None) > 0.03
    assert broken(0.9) <= 0.1
    assert broken(0.99) <= 0.01


def test_confidence_costs_few_admissions() -> None:
    admitted = {confidence: sum(result.num_admitted for result in results(confidence)) for confidence in (None, 0.99)}
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
