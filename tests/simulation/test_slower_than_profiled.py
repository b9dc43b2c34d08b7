"""Jobs that train slower or faster than their profile says: each number of GPUs is tried at most once."""

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import GenerationStarted, ThroughputMeasured
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from testbed.simulated_runs import services

PROFILED = {1: 5.0, 2: 9.0, 4: 16.0}
SPEC = JobSpec(
    training_function="examples.digits:Digits",
    model_name="new",
    global_batch_size=256,
    max_iterations=800,
    job_class=JobClass.BEST_EFFORT,
)


def trained(num_jobs: int, true_curve: dict[int, float]) -> VirtualCluster:
    """These jobs of one profile, on four GPUs."""
    scenario = Scenario(
        num_gpus_by_node={"a": 4},
        config=PoolConfig(curves={SPEC.measured_key: PROFILED}),
        timing_model=TimingModel(true_curves={SPEC.measured_key: true_curve}),
        arrivals=tuple(
            Arrival(at_s=10.0, command=SubmitJob(job_id=f"job-{number}", tenant="lab", spec=SPEC))
            for number in range(num_jobs)
        ),
    )
    with VirtualCluster(scenario, services, seed=3) as cluster:
        cluster.run(3_600.0)
    assert not cluster.state.live_jobs
    assert list(violations(cluster.entries)) == []
    return cluster


@pytest.mark.parametrize("num_jobs", [1, 2])
@pytest.mark.parametrize(
    "true_curve",
    [{1: 0.5, 2: 0.9, 4: 1.6}, {1: 50.0, 2: 90.0, 4: 160.0}, {1: 5.0, 2: 9.0, 4: 1.6}],
    ids=["slower", "faster", "slower-on-four-GPUs"],
)
def test_a_job_settles_on_its_best_number_of_gpus(true_curve: dict[int, float], num_jobs: int) -> None:
    messages = [entry.message for entry in trained(num_jobs, true_curve).entries]
    for number in range(num_jobs):
        job_id = f"job-{number}"
        shares = [m.num_gpus for m in messages if isinstance(m, GenerationStarted) and m.job_id == job_id]
        assert len(shares) <= len(PROFILED) + num_jobs, shares
    measured = [m for m in messages if isinstance(m, ThroughputMeasured)]
    assert all(m.iterations_per_s == pytest.approx(true_curve[m.num_gpus]) for m in measured)
