"""No promise rests on a node beyond its announced end, and each node is empty when it ends (record 72)."""

import os

import pytest

from elasticflow.simulator.trace.failures_and_speed_noise import NodeEnds
from elasticflow.simulator.trace.simulated_run import Outcome, SimulatedRun, execute
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs
from tests.support.rings import few_daily

NUM_RUNS = int(os.environ.get("EF_NODE_END_RUNS", "40"))
BLOCK = 20  # runs of one test


def ending(seed: int, gpus_per_node: int) -> Outcome:
    """More jobs than the cluster can run, with tight deadlines, while nodes come and go as they have announced."""
    cluster = ClusterShape(num_nodes=(2, 3, 4, 6)[seed % 4], gpus_per_node=gpus_per_node)
    recipe = Recipe(
        num_jobs=14,
        cluster_gpus=cluster.num_gpus,
        load=2.0,
        median_gpu_hours=0.5,
        gpu_hours_sigma=1.0,
        tightness=(0.7, 1.2),
        best_effort_share=0.15,
    )
    simulated_run = SimulatedRun(
        workload=generate(recipe, read_throughputs(bundled_throughputs()), seed),
        cluster=cluster,
        policy=("selective", "first-come")[seed // 2 % 2],
        reserve_nodes=seed // 4 % 5 // 4,  # in one run of five
        ends=NodeEnds(
            seed=seed,
            part=(0.5, 0.7, 1.0)[seed % 3],
            mean_stay_s=(600.0, 3_600.0)[seed // 3 % 2],
            away_s=(300.0, 30.0)[seed // 2 % 2],
        ),
    )
    verification = simulated_run.verification()
    return execute(simulated_run, simulated_run.simulation(verification), verification)


@pytest.mark.parametrize("first", few_daily(range(0, NUM_RUNS, BLOCK), 1))
def test_promises_hold_while_nodes_end_as_announced(first: int) -> None:
    outcomes = [ending(seed, (2, 4)[seed % 2]) for seed in range(first, first + BLOCK)]
    assert [(outcome.result.num_late(), outcome.failures) for outcome in outcomes] == [(0, ())] * len(outcomes)
    results = [outcome.result for outcome in outcomes]
    assert sum(result.num_admitted for result in results) > 4 * len(outcomes)
    assert sum(result.num_outages for result in results) > 4 * len(outcomes)  # ends


@pytest.mark.parametrize("first", few_daily(range(0, NUM_RUNS, BLOCK), 1))
def test_promises_hold_where_nodes_of_odd_sizes_change_what_connects_blocks(first: int) -> None:
    """What is left of two nodes makes a block on both, as long as both are there."""
    outcomes = [ending(seed, (3, 6, 5, 12)[seed // 2 % 4]) for seed in range(first, first + BLOCK)]
    assert [(outcome.result.num_late(), outcome.failures) for outcome in outcomes] == [(0, ())] * len(outcomes)
