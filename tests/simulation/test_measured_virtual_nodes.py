"""A job grows to as many GPUs as its profiling run has measured virtual nodes. A node's crash does not change them."""

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import AllocationDecided, PlanDecided, ThroughputMeasured
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import broken_promises, violations
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.simulated_runs import services

CURVE = {1: 5.0, 2: 9.5, 4: 18.0, 8: 34.0, 16: 60.0}


def pool_with_a_crash(virtual_nodes: int) -> VirtualCluster:
    """Two jobs of one unknown profile, one after another."""
    spec = JobSpec(
        training_function="examples.digits:Digits",
        model_name="m",
        global_batch_size=256,
        max_iterations=5_000,
        deadline_in_s=3_000.0,
    )
    commands = (SubmitJob(job_id=job_id, tenant="lab", spec=spec) for job_id in ("first", "second"))
    scenario = Scenario(
        num_gpus_by_node={"a": 8, "b": 8},
        config=PoolConfig(stop_free=True),
        timing_model=TimingModel(true_curves={spec.measured_key: CURVE}, bitwise_virtual_nodes=virtual_nodes),
        arrivals=tuple(Arrival(at_s=10.0 + 900.0 * n, command=command) for n, command in enumerate(commands)),
    )
    with VirtualCluster(scenario, services, seed=0) as cluster:
        cluster.loop.after(70.0, lambda: cluster.nodes["b"].crash(20.0))
        cluster.run(3_600.0)
    return cluster


@pytest.mark.parametrize("virtual_nodes", [16, 4, 1])
def test_a_job_has_as_many_gpus_as_virtual_nodes(virtual_nodes: int) -> None:
    """The simulated workers assert that all generations of a job have the same."""
    cluster = pool_with_a_crash(virtual_nodes)
    messages = [entry.message for entry in cluster.entries]
    decided = [event for m in messages if isinstance(m, PlanDecided) for event in m.events]
    shares = [event.num_gpus_by_job for event in decided if isinstance(event, AllocationDecided)]
    assert max(num_gpus for share in shares for num_gpus in share.values()) == virtual_nodes
    assert {m.num_gpus for m in messages if isinstance(m, ThroughputMeasured)} <= set(CURVE)
    ended = cluster.state.ended_jobs
    assert {job_id: job.num_virtual_nodes for job_id, job in ended.items()} == {
        "first": virtual_nodes,
        "second": virtual_nodes,
    }
    assert list(broken_promises(cluster.state)) == []
    assert list(violations(cluster.entries)) == []
    assert verify(cluster.entries, planners()).difference is None
