"""Traces on clusters whose places differ: promised jobs are on whole blocks, and none is late."""

import pytest

from elasticflow.simulator.timing.training_time import PUBLISHED_SLOWDOWN
from elasticflow.simulator.trace.simulated_run import Outcome, SimulatedRun, execute
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs

RECIPE = Recipe(num_jobs=100, cluster_gpus=32, load=0.9)
FOUR_NODES = ClusterShape(num_nodes=4, gpus_per_node=8)


def run(policy: str, slowdown_apart: float, seed: int = 0, cluster: ClusterShape = FOUR_NODES) -> Outcome:
    simulated_run = SimulatedRun(
        workload=generate(RECIPE, read_throughputs(bundled_throughputs()), seed),
        cluster=cluster,
        policy=policy,
        slowdown_apart=slowdown_apart,
    )
    verification = simulated_run.verification()
    return execute(simulated_run, simulated_run.simulation(verification), verification)


@pytest.mark.parametrize("seed", range(3))
def test_no_promised_job_is_apart_or_late(seed: int) -> None:
    outcome = run("first-come", PUBLISHED_SLOWDOWN, seed)
    assert outcome.placements_checked is not None
    assert outcome.placements_checked > 100
    assert (outcome.promised_apart, outcome.result.num_late(), outcome.certificate_failures) == (0, 0, 0)
    assert outcome.result.num_migrations > 0, "else the trace shows nothing"


def test_nodes_of_odd_sizes_too() -> None:
    outcome = run("first-come", PUBLISHED_SLOWDOWN, cluster=ClusterShape(num_nodes=5, gpus_per_node=6))
    assert (outcome.result.num_late(), outcome.certificate_failures) == (0, 0)


def test_a_baseline_that_spreads_jobs_is_slower_than_where_places_are_equal() -> None:
    apart, equal = (run("edf-elastic-late-last", slowdown).numbers()["mean_jct_s"] for slowdown in (10.0, 1.0))
    assert isinstance(apart, float)
    assert isinstance(equal, float)
    assert apart > equal
