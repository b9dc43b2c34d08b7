"""Pools of two GPU types on the virtual cluster that lose all nodes of a type: promises move where that keeps them."""

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import GpuTypeChanged, JobAtRisk, PlanDecided
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.faults import Faults
from elasticflow.simulator.pipeline.invariants import broken_promises, violations
from elasticflow.simulator.pipeline.timing_model import TimingModel
from elasticflow.simulator.replay.retaken_decisions import verify
from tests.simulation.test_profiles_by_type import CURVE, SPEC
from tests.support.scenarios import services

CURVES = dict.fromkeys(("new/b256", "new/b256@V100", "new/b256@P100"), CURVE)  # any type may join first
NUM_JOBS = 8
LONG_CRASHES = Faults(node_crash_every_s=90.0, max_outage_s=600.0, until_s=400.0)


def run(seed: int) -> VirtualCluster:
    """One V100 node beside two of P100. Nodes crash for up to ten minutes while the jobs train."""
    scenario = Scenario(
        num_gpus_by_node={"a": 4, "b": 4, "c": 4},
        gpu_type_by_node={"a": "V100", "b": "P100", "c": "P100"},
        config=PoolConfig(curves=CURVES, stop_free=True),
        timing_model=TimingModel(true_curves=CURVES),
        arrivals=tuple(
            Arrival(at_s=10.0 + 5.0 * number, command=SubmitJob(job_id=f"job-{number}", tenant="lab", spec=SPEC))
            for number in range(NUM_JOBS)
        ),
    )
    with VirtualCluster(scenario, services, seed=seed, faults=LONG_CRASHES) as cluster:
        cluster.run(3_600.0)
    return cluster


@pytest.mark.parametrize("seed", [1, 2])
def test_promises_move_and_none_is_broken(seed: int) -> None:
    cluster = run(seed)
    assert list(violations(cluster.entries)) == []
    assert verify(cluster.entries, planners()).difference is None
    messages = [entry.message for entry in cluster.entries]
    decided = [event for message in messages if isinstance(message, PlanDecided) for event in message.events]
    assert list(broken_promises(cluster.state)) == []
    at_risk = {message.job_id for message in messages if isinstance(message, JobAtRisk)}
    moved = {event.job_id for event in decided if isinstance(event, GpuTypeChanged)}
    assert moved
    assert moved <= at_risk
