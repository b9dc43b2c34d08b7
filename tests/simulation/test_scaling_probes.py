"""A node that joins late: jobs grow onto GPUs that no profiling run could measure, and every promise is kept."""

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

LATE, AWAY_S = "b", 40.0


def pool_with_a_late_node(curve: dict[int, float]) -> VirtualCluster:
    """One job for four GPUs of an unknown profile, and four more GPUs after some time."""
    spec = JobSpec(
        training_function="examples.digits:Digits",
        model_name="m",
        global_batch_size=256,
        max_iterations=2_000,
        deadline_in_s=1_000.0,
    )
    scenario = Scenario(
        num_gpus_by_node={"a": 4, LATE: 4},
        config=PoolConfig(stop_free=True),
        timing_model=TimingModel(true_curves={spec.measured_key: curve}),
        arrivals=(Arrival(at_s=10.0, command=SubmitJob(job_id="job", tenant="lab", spec=spec)),),
    )
    with VirtualCluster(scenario, services, seed=0) as cluster:
        cluster.loop.after(1.0, lambda: cluster.nodes[LATE].crash(AWAY_S))
        cluster.run(3_600.0)
    return cluster


@pytest.mark.parametrize(("on_eight", "occupancies"), [(30.0, True), (12.0, False), (4.0, False)])
def test_a_job_grows_onto_a_late_node_if_that_pays(on_eight: float, occupancies: bool) -> None:
    cluster = pool_with_a_late_node({1: 5.0, 2: 9.5, 4: 16.0, 8: on_eight})
    messages = [entry.message for entry in cluster.entries]
    decided = [event for m in messages if isinstance(m, PlanDecided) for event in m.events]
    shares = [event for event in decided if isinstance(event, AllocationDecided)]
    assert [event.num_gpus_by_job for event in shares if event.probes] == [{"job": 8}]
    reported = [m for m in messages if isinstance(m, ThroughputMeasured) and m.num_gpus == 8]
    assert {m.source for m in reported} == {"training"}
    assert reported[0].iterations_per_s == pytest.approx(on_eight, rel=0.1)
    last = [event.num_gpus_by_job["job"] for event in shares if event.num_gpus_by_job][-1]
    assert (last == 8) == occupancies
    assert list(broken_promises(cluster.state)) == []
    assert list(violations(cluster.entries)) == []
    assert verify(cluster.entries, planners()).difference is None
