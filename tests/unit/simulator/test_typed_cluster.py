"""Clusters and jobs of several GPU types, as the trace-driven simulation sees them."""

import pytest

from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, ScalingCurve
from elasticflow.simulator.trace.cluster_state import ClusterState, TrainingModel
from elasticflow.simulator.trace.simulated_run import numbers_by_type
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.workload import ClusterShape, SimulatedNode, TraceJob, Workload, typed_pool

FAST, SLOW = ScalingCurve((1, 2, 4), (4.0, 8.0, 16.0)), ScalingCurve((1, 2), (1.0, 2.0))


def typed(job_id: str, **changes: object) -> TraceJob:
    fields = {
        "job_id": job_id,
        "submitted_at_s": 0.0,
        "num_iterations": 800,
        "model_name": "net",
        "global_batch_size": 64,
        "deadline_s": None,
        "job_class": JobClass.BEST_EFFORT,
        "curve": FAST,
        "measured_by_type": {"V100": FAST, "K80": SLOW},
    }
    return TraceJob(**{**fields, **changes})  # pyright: ignore[reportArgumentType]


def test_nodes_have_one_type_and_the_last_of_a_type_what_is_left() -> None:
    cluster = ClusterShape.of_pool(typed_pool("3xV100,8xP100,9xK80"), 4)
    assert list(cluster.nodes.values()) == [
        SimulatedNode("V100", 3),
        SimulatedNode("P100", 4),
        SimulatedNode("P100", 4),
        SimulatedNode("K80", 4),
        SimulatedNode("K80", 4),
        SimulatedNode("K80", 1),
    ]
    assert (cluster.num_nodes, cluster.num_gpus, cluster.gpu_types) == (6, 20, ("V100", "P100", "K80"))
    assert cluster.node_ids == tuple(f"node-{number}" for number in range(6))
    assert cluster.gpus_of("node-5") == (GpuId("node-5", 0),)


def test_a_job_has_the_part_of_each_curve_that_is_within_its_range() -> None:
    large = typed("a", min_gpus=4, curve=ScalingCurve((4,), (16.0,)))
    assert large.curve_on("V100") == ScalingCurve((4,), (16.0,))
    assert large.curve_on("K80") is None
    assert large.measured_on("K80") == SLOW
    assert large.on_type("K80") is None
    assert typed("b").curve_on("P100") is None
    alone = Workload.of("typed", [large, typed("b")]).on_type("K80")
    assert [(job.job_id, job.curve, job.curve_on("K80")) for job in alone.jobs] == [("b", SLOW, SLOW)]


def test_the_pool_knows_the_curve_on_each_type_and_where_a_model_does_not_run() -> None:
    jobs = [typed("a"), typed("b", model_name="large", measured_by_type={"V100": FAST})]
    config = SimulatedPool().settings(Workload.of("typed", jobs), TrainingModel(resize_cost=FREE), ("V100", "K80"))
    assert config.curves == {
        "net/b64": FAST.rate_by_num_gpus,
        "net/b64@K80": {**SLOW.rate_by_num_gpus, 4: 0.0},
        "large/b64": FAST.rate_by_num_gpus,
        "large/b64@K80": {1: 0.0, 2: 0.0, 4: 0.0},
    }


def test_a_job_trains_at_the_rate_of_its_type_and_never_where_it_does_not_run() -> None:
    only_fast = typed("b", submitted_at_s=1.0, min_gpus=4, curve=ScalingCurve((4,), (16.0,)))
    workload = Workload.of("typed", [typed("a"), only_fast])
    result = Simulation(
        workload, ClusterShape.of_pool(typed_pool("4xV100,2xK80"), 4), TrainingModel(resize_cost=FREE)
    ).run()
    assert {fate.job.job_id: fate.admitted_on for fate in result.fates} == {"a": "V100", "b": "V100"}
    by_type = numbers_by_type(result)
    assert by_type["K80"] == {
        "gpus": 2,
        "jobs": 0,
        "promised": 0,
        "met": 0,
        "late": 0,
        "gpu_hours": 0.0,
        "utilization": 0.0,
    }
    assert by_type["V100"]["jobs"] == 2
    assert by_type["V100"]["utilization"] == pytest.approx(1.0)
    assert result.makespan_s == pytest.approx(100.0)
    assert result.cluster_efficiency == pytest.approx(4 / 6)  # all of the fast type, in units of its single GPU


def test_gpus_of_a_type_on_which_a_job_does_not_run_do_not_make_it_faster() -> None:
    """Idle ones may join it, and even compute alone: the services know one GPU of each type."""
    cluster = ClusterShape.of_pool(typed_pool("4xK80,2xV100"), 4)
    slow, fast = cluster.gpus_of("node-0"), cluster.gpus_of("node-1")
    least_four = {"K80": ScalingCurve((4,), (3.0,)), "V100": ScalingCurve((1, 2), (4.0, 8.0))}
    job = typed("a", min_gpus=4, curve=least_four["K80"], measured_by_type=least_four)
    for virtual_nodes in ((8, 8, 8, 8, 16, 16), (0, 0, 0, 0, 32, 32)):
        training = ClusterState(cluster, TrainingModel(resize_cost=FREE)).occupy(
            job, 1, (*slow, *fast), 0.0, virtual_nodes
        )
        assert training.progress.iterations_per_s == 3.0
