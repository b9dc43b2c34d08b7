"""The trace-driven simulation with a time for each kind of change: jobs train until their next workers are ready."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, ResizeCost, ScalingCurve
from elasticflow.simulator.timing.overhead import overhead_model
from elasticflow.simulator.timing.training_time import SwitchTime, TrainingTime
from elasticflow.simulator.trace.cluster_state import ClusterState, TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import HOUR_S, Failures
from elasticflow.simulator.trace.plots import efficiency
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.csv_table import BadInput
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, Workload, bundled_throughputs, bundled_trace
from tests.support.trace_jobs import job

FOUR = ClusterShape(num_nodes=1, gpus_per_node=4)
SIXTEEN = ClusterShape(num_nodes=2, gpus_per_node=8)
GPUS = FOUR.gpus_of("node-0")
CURVE = ScalingCurve((1, 2, 4), (1.0, 2.0, 4.0))
CHANGES = TrainingTime(
    first_start=ResizeCost.flat(3.0),
    restart=ResizeCost.flat(5.0),
    grow=SwitchTime(prepare=ResizeCost.flat(8.0), stop=ResizeCost.flat(1.0)),
    shrink=SwitchTime(prepare=ResizeCost.flat(2.0), stop=ResizeCost.flat(0.5)),
    suspend=ResizeCost.flat(4.0),
)
AS_JSON = {
    "seconds_by_num_gpus": {"1": 9.0},
    "changes": {
        "first_start": {"1": 3.0},
        "restart": {"1": 5.0},
        "grow": {"prepare": {"1": 8.0}, "stop": {"1": 1.0}},
        "shrink": {"prepare": {"1": 2.0}, "stop": {"1": 0.5}},
        "suspend": {"1": 4.0},
    },
}


def cluster_state() -> ClusterState:
    return ClusterState(FOUR, TrainingModel(resize_cost=FREE, changes=CHANGES))


def test_a_job_trains_on_its_old_gpus_until_the_new_workers_are_ready() -> None:
    state, one = cluster_state(), job("a", 100, 0.0, None, CURVE, JobClass.BEST_EFFORT)
    state.occupy(one, 1, GPUS[:1], 0.0)
    assert state.iteration("a", 10.0) == 7.0  # after the first start
    before = state.release("a", 10.0)
    grown = state.occupy(one, 2, GPUS[:2], 10.0, before=before)
    assert [state.iteration("a", at_s) for at_s in (14.0, 18.0, 18.5, 19.0, 20.0)] == [11.0, 15.0, 15.0, 15.0, 17.0]
    assert grown.done_at_s == pytest.approx(19.0 + 85 / 2, abs=1e-4)
    shrunk = state.occupy(one, 3, GPUS[1:2], 20.0, before=state.release("a", 20.0))
    assert (shrunk.stops_s, shrunk.starts_s, state.iteration("a", 22.5)) == (22.0, 22.5, 21.0)
    state.release("a", 30.0)
    assert [occupancy.iterations for occupancy in state.occupancies] == [7.0, 10.0, 11.5]
    again = state.occupy(one, 4, GPUS[:1], 40.0)
    assert again.starts_s == 45.0  # a restart


def test_a_job_that_ends_before_the_new_workers_are_ready_does_not_wait_for_them() -> None:
    state, one = cluster_state(), job("a", 10, 0.0, None, CURVE, JobClass.BEST_EFFORT)
    state.occupy(one, 1, GPUS[:1], 0.0)
    grown = state.occupy(one, 2, GPUS[:2], 10.0, before=state.release("a", 10.0))
    assert grown.done_at_s == pytest.approx(13.0, abs=1e-4)
    assert state.iteration("a", 17.0) == 10.0


def test_a_change_during_a_switch_goes_on_from_the_workers_that_train() -> None:
    state, one = cluster_state(), job("a", 100, 0.0, None, CURVE, JobClass.BEST_EFFORT)
    state.occupy(one, 1, GPUS[:1], 0.0)
    state.occupy(one, 2, GPUS[:2], 10.0, before=state.release("a", 10.0))
    before = state.release("a", 14.0)
    assert before is not None
    assert (before.generation, before.gpus, before.progress.iteration) == (1, GPUS[:1], 11.0)
    last = state.occupy(one, 3, GPUS, 14.0, before=before)
    assert (last.starts_s, last.progress.iteration) == (23.0, 19.0)


def test_workers_wait_until_those_of_another_job_have_left_their_gpus() -> None:
    state, one = cluster_state(), job("a", 100, 0.0, None, CURVE, JobClass.BEST_EFFORT)
    state.occupy(one, 1, GPUS[:2], 0.0)
    state.release("a", 10.0)  # suspended
    assert state.occupy(job("b", 9, 0.0, None, CURVE, JobClass.BEST_EFFORT), 1, GPUS[:1], 10.0).starts_s == 17.0
    state.finish("b", 20.0)
    assert state.occupy(job("c", 9, 0.0, None, CURVE, JobClass.BEST_EFFORT), 1, GPUS[:1], 20.0).starts_s == 23.0
    shrinking = cluster_state()
    shrinking.occupy(one, 1, GPUS[:2], 0.0)
    shrinking.occupy(one, 2, GPUS[:1], 10.0, before=shrinking.release("a", 10.0))
    taker = shrinking.occupy(job("b", 9, 0.0, None, CURVE, JobClass.BEST_EFFORT), 1, GPUS[1:2], 10.0)
    assert taker.starts_s == 12.0 + 3.0


def small(num_jobs: int) -> Workload:
    whole = read_trace(bundled_trace("small"), read_throughputs(bundled_throughputs()))
    return replace(whole, jobs=whole.jobs[:num_jobs])


@pytest.mark.parametrize("failures", [None, Failures(seed=3, mean_up_s=6 * HOUR_S, mean_down_s=HOUR_S)])
def test_jobs_switch_promises_hold_and_no_iteration_is_lost(tmp_path: Path, failures: Failures | None) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(AS_JSON))
    run = SimulatedRun(workload=small(60), cluster=SIXTEEN, overhead=f"measured {file}", failures=failures)
    verification = run.verification()
    result = run.simulation(verification).run()
    assert verification is not None
    assert verification.certificates_checked > 0
    assert not verification.failures
    if failures is None:
        assert result.num_late() == 0
    switched = 0
    for fate in result.fates:
        if fate.finished_at_s is not None:
            done = sum(occupancy.iterations for occupancy in fate.occupancies)
            assert done == pytest.approx(fate.job.num_iterations, abs=1e-2)
        for before, after in pairwise(fate.occupancies):
            assert before.left_at_s <= after.placed_at_s
            switched += after.previous_iterations_per_s > 0
    assert switched > 10
    assert result.num_unfinished == 0
    assert len(efficiency(result).value_S) > sum(len(fate.occupancies) for fate in result.fates)


def test_a_live_pools_settings_replace_those_without_margins() -> None:
    config = PoolConfig(throughput_margin=0.5, resize_cost_s=1.0, stop_free=True, curves={"model/b64": {1: 1.0}})
    one = job("a", 100, 0.0, 150.0)
    workload, training = Workload.of("one", [one]), TrainingModel(resize_cost=FREE)
    assert Simulation(workload, FOUR, training).run().num_admitted == 1
    assert Simulation(workload, FOUR, training, SimulatedPool(config=config)).run().num_admitted == 0


@pytest.mark.parametrize("path", [("suspend",), ("grow", "stop"), ("shrink",)])
def test_a_file_that_lacks_a_kind_of_change_is_refused(tmp_path: Path, path: tuple[str, ...]) -> None:
    content = json.loads(json.dumps(AS_JSON))
    place = content["changes"]
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=path[0]):
        overhead_model(f"measured {file}", 4)
    file.write_text(
        json.dumps({**AS_JSON, "stop_model": {"seconds": 1, "seconds_per_byte": 0, "seconds_per_doubling": 0}})
    )
    with pytest.raises(BadInput, match="both changes and a stop_model"):
        overhead_model(f"measured {file}", 4)
