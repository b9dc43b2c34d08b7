"""Traces with jobs whose replicas have 1, 2 or 4 GPUs: replicas are whole, and no promise breaks that time would keep.

The simulated cluster asserts that each replica is on one node, whenever a job takes GPUs.
"""

import os
from dataclasses import replace

import numpy as np
import pytest

from elasticflow.shared.messages.gpus import GpuRange
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.scheduling.availability.fill import OUTAGE_S
from elasticflow.simulator.trace import simulation
from elasticflow.simulator.trace.failures_and_speed_noise import Failures
from elasticflow.simulator.trace.simulated_run import Outcome, SimulatedRun, execute
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload, bundled_throughputs, within
from tests.support.rings import few_daily

NUM_RUNS = int(os.environ.get("EF_GANG_RUNS", "40"))
BLOCK = 10  # runs of one test
THROUGHPUTS = read_throughputs(bundled_throughputs())


def with_gangs(workload: Workload, seed: int, most: int) -> Workload:
    """Two of three jobs have several GPUs for each replica, up to `most`."""
    rng = np.random.default_rng(seed)

    def with_gang(job: TraceJob) -> TraceJob:
        gang = int(rng.choice([1, 2, min(4, most)]))
        curve = within(job.curve, GpuRange(gang))
        if gang == 1 or curve is None:
            return job
        return replace(job, gpus_per_replica=gang, curve=curve, measured=job.measured or job.curve)

    return Workload.of(workload.name, map(with_gang, workload.jobs))


def simulated(seed: int, *, reserve_nodes: int, policy: str = "") -> Outcome:
    cluster = ClusterShape(num_nodes=(3, 4, 6)[seed % 3], gpus_per_node=(2, 4, 6, 8)[seed % 4])
    recipe = Recipe(
        num_jobs=16,
        cluster_gpus=cluster.num_gpus,
        load=(1.0, 2.0)[seed % 2],
        median_gpu_hours=0.5,
        gpu_hours_sigma=1.0,
        tightness=(0.7, 1.6),
        best_effort_share=0.25,
    )
    failures = Failures(
        seed=seed, mean_up_s=OUTAGE_S / 2, mean_down_s=(60.0, 1_200.0)[seed // 4 % 2], max_down=reserve_nodes
    )
    simulated_run = SimulatedRun(
        workload=with_gangs(generate(recipe, THROUGHPUTS, seed), seed, cluster.gpus_per_node),
        cluster=cluster,
        policy=policy or ("selective", "first-come")[seed // 2 % 2],
        reserve_nodes=reserve_nodes,
        failures=failures if reserve_nodes else None,
    )
    verification = simulated_run.verification()
    return execute(simulated_run, simulated_run.simulation(verification), verification)


@pytest.mark.parametrize("reserve_nodes", [0, 1])
@pytest.mark.parametrize("first", few_daily(list(range(0, NUM_RUNS, BLOCK)), 1))
@pytest.mark.parametrize("entry", [TORCHRUN, "Job"])
def test_no_promise_breaks_with_replicas_of_several_gpus(
    entry: str, first: int, reserve_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of scripts, which restart at each change, and of classes, which switch without a stop."""
    monkeypatch.setattr(simulation, "TORCHRUN", entry)
    outcomes = [simulated(seed, reserve_nodes=reserve_nodes) for seed in range(first, first + BLOCK)]
    assert [(outcome.result.num_late(), outcome.failures) for outcome in outcomes] == [(0, ())] * len(outcomes)
    gangs = [fate for each in outcomes for fate in each.result.fates if fate.job.gpus_per_replica > 1]
    ended = [fate for fate in gangs if fate.finished_at_s is not None]
    assert len(ended) > len(outcomes), "else the traces show nothing"
    shares = {occupancy.num_gpus // fate.job.gpus_per_replica for fate in gangs for occupancy in fate.occupancies}
    assert {1, 2} <= shares, "some jobs have several replicas"


def test_baselines_take_the_gpus_of_a_replica_for_the_fewest() -> None:
    outcome = simulated(1, reserve_nodes=0, policy="edf-elastic-late-last")
    gangs = [fate for fate in outcome.result.fates if fate.job.min_gpus > 1]
    assert gangs
    assert all(each.num_gpus >= fate.job.min_gpus for fate in gangs for each in fate.occupancies)


@pytest.mark.parametrize("seed", [6, 30, 54])
def test_no_promise_of_a_node_alone_breaks_when_the_others_of_six_gpus_are_back(seed: int) -> None:
    """Two of three nodes may be down: then no block is on two nodes, as some are once they are back."""
    outcome = simulated(seed, reserve_nodes=2)
    assert outcome.run.cluster.gpus_per_node == 6
    assert (outcome.result.num_late(), outcome.failures) == (0, ())
