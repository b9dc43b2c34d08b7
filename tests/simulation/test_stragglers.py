"""A slow GPU in a full pool: the job goes on with less work on it or without it, and as before once it is healthy."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import (
    AllocationDecided,
    GenerationStarted,
    JobFinished,
    JobProgressed,
    PlacedJob,
    PlacementDecided,
    PlanDecided,
)
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import MANY_FAULTS, START_S, Arrival, Faults, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.pipeline.virtual_workers import Slowness, TimingModel
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.simulated_runs import random_scenario, services
from tests.support.rings import few_daily

SPEC = JobSpec(
    training_function="examples.digits:Digits",
    model_name="new",
    global_batch_size=256,
    max_iterations=12_000,
    job_class=JobClass.SLO,
    deadline_in_s=1_000.0,
)
CURVE = {1: 5.0, 2: 10.0, 4: 20.0}  # without communication; a GPU computes one of 16 virtual nodes in 12.5 ms
HEALTHY_S = START_S + 300.0
EVENLY, RELIEVED, SLOWED = 20.0, 16.0, 20.0 / 3


@cache
def run(slowdown: float, slow_gpu_s: float = 300.0, *, profiled: bool = True) -> VirtualCluster:
    """One promised job that may hold all four GPUs; the second is slow for five minutes.

    profiled: in the pool; else the configuration has its curve, and the number of virtual nodes is unknown.
    """
    scenario = Scenario(
        num_gpus_by_node={"a": 4},
        config=PoolConfig(stop_free=True, slow_gpu_s=slow_gpu_s, curves={} if profiled else {"new/b256": CURVE}),
        timing_model=TimingModel(
            true_curves={SPEC.measured_key: CURVE},
            slow_gpus={GpuId("a", 1): Slowness(slowdown, HEALTHY_S)},
            report_every_s=5.0,
        ),
        arrivals=(Arrival(at_s=5.0, command=SubmitJob(job_id="job", tenant="lab", spec=SPEC)),),
    )
    with VirtualCluster(scenario, services, seed=3) as cluster:
        cluster.run(3_600.0)
    return cluster


def all_events(cluster: VirtualCluster) -> Iterator[object]:
    for entry in cluster.entries:
        yield from entry.message.events if isinstance(entry.message, PlanDecided) else (entry.message,)


def generations(cluster: VirtualCluster) -> list[PlacedJob]:
    """Those that train, after the profiling runs."""
    placements = [event for event in all_events(cluster) if isinstance(event, PlacementDecided)]
    return [placed for event in placements for placed in event.placements if len(placed.gpus) > 2]


def speeds(cluster: VirtualCluster) -> dict[int, float]:
    """Iterations per second of each generation."""
    reports = [event for event in all_events(cluster) if isinstance(event, JobProgressed) and event.iterations_per_s]
    return {report.generation: report.iterations_per_s or 0.0 for report in reports}


def ended_s(cluster: VirtualCluster) -> float:
    (end,) = (event.at_s for event in all_events(cluster) if isinstance(event, JobFinished))
    return end - START_S


def problems(cluster: VirtualCluster) -> list[str]:
    difference = verify(cluster.entries, planners()).difference
    return [
        *violations(cluster.entries),
        *cluster.state.live_jobs,
        *([] if difference is None else [str(difference)]),
    ]


def test_it_carries_fewer_virtual_nodes_until_it_is_healthy() -> None:
    cluster = run(3.0)
    *_, first, relieved, last = generations(cluster)
    assert [each.virtual_nodes_by_rank for each in (first, relieved, last)] == [(), (5, 1, 5, 5), ()]
    assert first.gpus == relieved.gpus == last.gpus
    assert relieved.predicted_speedup == pytest.approx(RELIEVED / SLOWED)
    by_generation = speeds(cluster)
    assert [by_generation[each.generation] for each in (first, relieved, last)] == pytest.approx(
        [SLOWED, RELIEVED, EVENLY], rel=0.01
    )
    shares = [event.num_gpus_by_job for event in all_events(cluster) if isinstance(event, AllocationDecided)]
    assert shares[-2]["job"] == 4, "the plan's number of GPUs stays"
    assert problems(cluster) == []
    assert ended_s(cluster) < ended_s(run(3.0, slow_gpu_s=0.0)) - 300.0


def test_it_is_left_out_until_it_is_healthy() -> None:
    cluster = run(9.0, profiled=False)
    relieved = [each for each in generations(cluster) if each.predicted_speedup]
    assert {each.gpus for each in relieved} == {tuple(GpuId("a", index) for index in (0, 2, 3))}
    assert problems(cluster) == []
    starts = [event.num_gpus for event in all_events(cluster) if isinstance(event, GenerationStarted)]
    assert starts[-1] == 4, "it takes part again"


STORM = replace(MANY_FAULTS, until_s=200.0)
LOST_NODES = Faults(node_crash_every_s=60.0, worker_crash_every_s=40.0, until_s=300.0)


@pytest.mark.parametrize(
    ("seed", "faults"),
    few_daily([(2, STORM), (5, LOST_NODES), (1, LOST_NODES), (6, STORM), (3, LOST_NODES), (4, STORM)], 1),
)
def test_no_invariant_is_broken_beside_faults(seed: int, faults: Faults) -> None:
    base = random_scenario(seed, curves_known=bool(seed % 2), num_jobs=6, max_iterations=3_000)
    slow = {GpuId(node, 1): Slowness(2.0 + seed, START_S + 400.0) for node in "abcd"}
    scenario = replace(
        base,
        config=replace(base.config, slow_gpu_s=60.0),
        timing_model=replace(base.timing_model, slow_gpus=slow, report_every_s=2.0),
    )
    with VirtualCluster(scenario, services, seed=seed, faults=faults) as cluster:
        cluster.run(7_200.0)
    assert problems(cluster) == []
