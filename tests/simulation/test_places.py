"""Traces on clusters whose places differ: promised jobs are on whole blocks, and none is late."""

from typing import Any

import pytest

from elasticflow.simulator.timing.training_time import PUBLISHED_SLOWDOWN
from elasticflow.simulator.trace.simulated_run import Outcome, SimulatedRun, execute
from elasticflow.simulator.verification import trace_verification
from elasticflow.simulator.verification.certificates import Packed
from elasticflow.simulator.verification.packing_search import find_packing
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs

RECIPE = Recipe(num_jobs=100, cluster_gpus=32, load=0.9)
FOUR_NODES = ClusterShape(num_nodes=4, gpus_per_node=8)


def run(
    policy: str, slowdown_apart: float, seed: int = 0, cluster: ClusterShape = FOUR_NODES, reserve_nodes: int = 0
) -> Outcome:
    simulated_run = SimulatedRun(
        workload=generate(RECIPE, read_throughputs(bundled_throughputs()), seed),
        cluster=cluster,
        policy=policy,
        reserve_nodes=reserve_nodes,
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
    assert outcome.packings_checked is not None
    assert outcome.packings_checked > 100
    assert outcome.packings_missing == 0, "each plan shows who can pay for the migrations"


def test_a_packing_that_does_not_hold_is_a_wrong_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_one(*arguments: Any) -> tuple[Packed, ...] | None:
        found = find_packing(*arguments)
        return found and found[:-1]

    monkeypatch.setattr(trace_verification, "find_packing", without_one)
    outcome = run("first-come", PUBLISHED_SLOWDOWN)
    assert outcome.certificate_failures
    assert "it has no GPUs from" in outcome.failures[0]


def test_no_packing_is_sought_where_places_are_equal() -> None:
    outcome = run("first-come", 1.0)
    assert (outcome.packings_checked, outcome.packings_missing) == (0, 0)


@pytest.mark.parametrize(
    ("cluster", "reserve_nodes"),
    [(ClusterShape(num_nodes=5, gpus_per_node=6), 0), (ClusterShape(num_nodes=5, gpus_per_node=8), 1)],
    ids=["nodes of odd sizes", "a node in reserve"],
)
def test_other_pools_too(cluster: ClusterShape, reserve_nodes: int) -> None:
    outcome = run("first-come", PUBLISHED_SLOWDOWN, cluster=cluster, reserve_nodes=reserve_nodes)
    assert (outcome.result.num_late(), outcome.certificate_failures) == (0, 0)
    assert outcome.packings_checked
    assert outcome.packings_missing == 0


def test_a_baseline_that_spreads_jobs_is_slower_than_where_places_are_equal() -> None:
    apart, equal = (run("edf-elastic-late-last", slowdown).numbers()["mean_jct_s"] for slowdown in (10.0, 1.0))
    assert isinstance(apart, float)
    assert isinstance(equal, float)
    assert apart > equal


def test_the_papers_algorithms_place_on_blocks_where_places_differ_and_migrate_for_no_place_elsewhere() -> None:
    differ, equal, rigid = (
        run(policy, slowdown).result
        for policy, slowdown in (("elasticflow-algorithms", 10.0), ("elasticflow-algorithms", 1.0), ("edf", 10.0))
    )
    assert differ.num_migrations > 0
    assert (equal.num_migrations, rigid.num_migrations) == (0, 0)
