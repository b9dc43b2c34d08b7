"""Pools of two GPU types on the virtual cluster that lose all nodes of a type: promises move where that keeps them."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import GpuTypeChanged, JobAtRisk, PlanDecided
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.pool import spec_of
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import Arrival, Faults, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import broken_promises, violations
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.simulated_runs import services
from tests.simulation.test_profiles_by_type import CURVE, SPEC
from tests.support.rings import few_daily

CURVES = dict.fromkeys(("new/b256", "new/b256@V100", "new/b256@P100"), CURVE)  # any type may join first
NUM_JOBS = 8
LONG_CRASHES = Faults(node_crash_every_s=90.0, max_outage_s=600.0, until_s=400.0)


def scenario() -> Scenario:
    """One V100 node beside two of P100."""
    return Scenario(
        num_gpus_by_node={"a": 4, "b": 4, "c": 4},
        gpu_type_by_node={"a": "V100", "b": "P100", "c": "P100"},
        config=PoolConfig(curves=CURVES, stop_free=True),
        timing_model=TimingModel(true_curves=CURVES),
        arrivals=tuple(
            Arrival(at_s=10.0 + 5.0 * number, command=SubmitJob(job_id=f"job-{number}", tenant="lab", spec=SPEC))
            for number in range(NUM_JOBS)
        ),
    )


def decided(cluster: VirtualCluster) -> list[Any]:
    """The events of all decisions, after the ledger has been checked."""
    assert list(violations(cluster.entries)) == []
    assert verify(cluster.entries, planners()).difference is None
    assert list(broken_promises(cluster.state)) == []
    messages = [entry.message for entry in cluster.entries]
    return [event for message in messages if isinstance(message, PlanDecided) for event in message.events]


@pytest.mark.parametrize("seed", few_daily([21, 22], 1))  # in which the only V100 node crashes
def test_promises_move_and_none_is_broken(seed: int) -> None:
    """Nodes crash for up to ten minutes while the jobs train."""
    with VirtualCluster(scenario(), services, seed=seed, faults=LONG_CRASHES) as cluster:
        cluster.run(3_600.0)
    events = decided(cluster)
    moved = {event.job_id for event in events if isinstance(event, GpuTypeChanged)}
    assert moved
    assert moved <= at_risk(cluster)


def at_risk(cluster: VirtualCluster) -> set[str]:
    return {entry.message.job_id for entry in cluster.entries if isinstance(entry.message, JobAtRisk)}


@pytest.mark.parametrize("outage_s", [0.2, 60.0])
def test_promises_on_the_first_type_move_when_its_only_node_comes_back_with_a_new_type(outage_s: float) -> None:
    slow = {num_gpus: rate / 10 for num_gpus, rate in CURVE.items()}
    both = replace(
        scenario(),
        num_gpus_by_node={"a": 4, "b": 4},
        gpu_type_by_node={"a": "V100", "b": "P100"},
        timing_model=TimingModel(true_curves={**CURVES, "new/b256@K80": slow}),
    )
    with VirtualCluster(both, services, seed=1) as cluster:
        cluster.run_for(60.0)
        first, other = cluster.state.gpu_types
        on_first = {job.job_id for job in cluster.state.live_jobs.values() if not spec_of(job).gpu_type}
        (node,) = (node_id for node_id, gpu_type in both.gpu_type_by_node.items() if gpu_type == first)
        cluster.replace_gpus(node, "K80", outage_s)
        cluster.run(3_600.0)
    events = decided(cluster)
    assert cluster.state.gpu_types == (first, other, "K80")
    changed = {event.job_id: event.gpu_type for event in events if isinstance(event, GpuTypeChanged)}
    assert changed
    assert at_risk(cluster) == on_first
    assert changed == dict.fromkeys(on_first, other)
