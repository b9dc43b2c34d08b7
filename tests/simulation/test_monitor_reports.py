"""A simulation under the settings of a live pool learns the true speeds as the monitor of that pool does."""

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.workload import ClusterShape, Workload
from tests.support.trace_jobs import job

SETTINGS = {1: 1.0, 2: 2.0, 4: 4.0}
TRUE = {1: 0.95, 2: 1.3, 4: 1.4}  # iterations/s; that of one GPU is close to the settings


def simulated(jobs: dict[str, tuple[float, int]]) -> Simulation:
    """jobs: the time of arrival and the iterations, by id."""
    curve = ScalingCurve(tuple(TRUE), tuple(TRUE.values()))
    arriving = (
        job(job_id, num_iterations, at_s, None, curve, JobClass.BEST_EFFORT)
        for job_id, (at_s, num_iterations) in jobs.items()
    )
    config = PoolConfig(curves={"model/b64": SETTINGS}, resize_cost_s=1.0)
    cluster = ClusterShape(num_nodes=1, gpus_per_node=4)
    return Simulation(
        Workload.of("test", arriving),
        cluster,
        TrainingModel(resize_cost=ResizeCost.flat(1.0)),
        SimulatedPool(config=config),
    )


def test_a_speed_unlike_the_settings_corrects_the_curve_where_a_job_trained() -> None:
    """On four GPUs first. By the settings two are better then, until they are measured too. One is close to them."""
    simulation = simulated({"a": (0.0, 100)})
    simulation.run()
    (curve,) = simulation.state.curves.values()
    assert curve.iterations_per_s == {1: SETTINGS[1], 2: TRUE[2], 4: TRUE[4]}


def test_a_generation_that_ends_before_its_speed_has_settled_corrects_nothing() -> None:
    simulation = simulated({"a": (0.0, 5)})
    simulation.run()
    (curve,) = simulation.state.curves.values()
    assert curve.iterations_per_s == SETTINGS
