"""Jobs of unknown speed on two GPU types, of which idle GPUs join jobs of the other type."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from elasticflow.shared.messages.events import PlacedJob, PlacementDecided, PlanDecided
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import MANY_FAULTS, NO_FAULTS, Faults, VirtualCluster
from elasticflow.simulator.pipeline.invariants import broken_promises, violations
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.simulated_runs import random_scenario, services
from tests.support.rings import few_daily

TYPE_BY_NODE = {"a": "V100", "b": "P100", "c": "V100", "d": "P100"}
LOST_NODES = Faults(node_crash_every_s=40.0, worker_crash_every_s=30.0, until_s=300.0)
STORM = replace(MANY_FAULTS, until_s=200.0)
SEEDS = {
    "lost-nodes-21": (21, LOST_NODES, {"reserve_nodes": 1}),
    **{f"calm-{seed}": (seed, NO_FAULTS, {"stop_free": True}) for seed in range(1, 4)},
    **{f"with-stops-{seed}": (seed, NO_FAULTS, {"stop_free": False}) for seed in range(6, 9)},
    **{f"lost-nodes-{seed}": (seed, LOST_NODES, {"reserve_nodes": 1}) for seed in (25, 33)},
}


@cache
def run(name: str) -> VirtualCluster:
    return simulated(*SEEDS[name])


def simulated(seed: int, faults: Faults, config: dict[str, object]) -> VirtualCluster:
    """The type of the node that joins first has the curves without a type, and is twice as fast as the other."""
    base = random_scenario(seed, curves_known=False, num_jobs=14, max_iterations=1_500)
    curves = dict(base.timing_model.true_curves)
    for key, curve in base.timing_model.true_curves.items():
        slower = {num_gpus: rate / 2 for num_gpus, rate in curve.items()}
        curves |= {f"{key}@{gpu_type}": slower for gpu_type in TYPE_BY_NODE.values()}
    scenario = replace(
        base,
        gpu_type_by_node=TYPE_BY_NODE,
        config=replace(base.config, **config),  # pyright: ignore[reportArgumentType]
        timing_model=replace(base.timing_model, true_curves=curves),
    )
    with VirtualCluster(scenario, services, seed=seed, faults=faults) as cluster:
        cluster.run(7_200.0)
    return cluster


def mixed(cluster: VirtualCluster) -> Iterator[PlacedJob]:
    """The generations that GPUs of another type joined."""
    for entry in cluster.entries:
        for event in entry.message.events if isinstance(entry.message, PlanDecided) else ():
            if isinstance(event, PlacementDecided):
                yield from (placed for placed in event.placements if placed.num_added_gpus)


def problems(cluster: VirtualCluster) -> list[str]:
    """Beside late jobs."""
    wrong = list(violations(cluster.entries))
    difference = verify(cluster.entries, planners()).difference
    return [*wrong, *cluster.state.live_jobs, *([] if difference is None else [str(difference)])]


@pytest.mark.parametrize("name", few_daily(SEEDS, 3))
def test_no_promise_is_broken_and_no_gpu_given_twice(name: str) -> None:
    cluster = run(name)
    assert list(broken_promises(cluster.state)) == []
    assert problems(cluster) == []


@pytest.mark.parametrize("seed", few_daily([1, 2], 1))
def test_a_storm_breaks_no_invariant(seed: int) -> None:
    cluster = simulated(seed, STORM, {})
    assert problems(cluster) == []
    assert list(mixed(cluster))


@pytest.mark.nightly("it needs all seeds, most of which run each night")
def test_jobs_are_mixed_in_these_runs() -> None:
    """The tests above would say little about jobs of one type."""
    generations = [placed for name in SEEDS for placed in mixed(run(name))]
    assert len(generations) > len(SEEDS)
    assert all(sum(placed.virtual_nodes_by_rank) == 16 for placed in generations if placed.virtual_nodes_by_rank)
