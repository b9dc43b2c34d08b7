"""What a change of GPUs costs a simulated job."""

import pytest

from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.simulator.trace.cluster_state import ClusterState, TrainingModel
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob

JOB = TraceJob(
    job_id="a",
    submitted_at_s=0.0,
    num_iterations=100,
    model_name="net",
    global_batch_size=64,
    deadline_s=None,
    job_class=JobClass.BEST_EFFORT,
    curve=ScalingCurve((1, 2), (1.0, 2.0)),
)
GPUS = tuple(GpuId("node-0", index) for index in range(2))


def test_a_job_makes_no_progress_during_the_stop_of_each_resize() -> None:
    cluster = ClusterState(
        ClusterShape(num_nodes=1, gpus_per_node=2), TrainingModel(resize_cost=ResizeCost((1, 2), (3.0, 5.0)))
    )
    first = cluster.occupy(JOB, 1, GPUS[:1], 10.0)
    assert (first.starts_s, cluster.iteration("a", 13.0), cluster.iteration("a", 43.0)) == (13.0, 0.0, 30.0)
    cluster.release("a", 43.0)
    second = cluster.occupy(JOB, 2, GPUS, 43.0)
    assert (second.starts_s, cluster.iteration("a", 48.0), cluster.iteration("a", 58.0)) == (48.0, 30.0, 50.0)
    assert second.done_at_s == pytest.approx(48.0 + 70.0 / 2.0)


def test_a_gpu_has_one_job() -> None:
    cluster = ClusterState(ClusterShape(num_nodes=1, gpus_per_node=2), TrainingModel(resize_cost=ResizeCost.flat(0.0)))
    cluster.occupy(JOB, 1, GPUS, 0.0)
    with pytest.raises(AssertionError, match="another job holds"):
        cluster.occupy(JOB, 1, GPUS[:1], 1.0)
