"""Given measured profiles of a job, its step times on each GPU type, and how long its workers communicate."""

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.measurements import SingleGpuStepTimes
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import JobStepTimes, job_step_times
from elasticflow.shared.scheduling.heterogeneous.step_times import StepTime
from testbed.histories import LINEAR, NOW_S, History, spec
from tests.support.two_types import two_types

ON_V100 = SingleGpuStepTimes(
    num_virtual_nodes=8,
    step_s_by_virtual_nodes={1: 0.3, 2: 0.4, 4: 0.6, 8: 1.0},
    reproducible="bitwise",
)
JOB = spec(model_name="new")


def measured(
    key: str,
    num_gpus: int,
    rate: float,
    at_s: float,
    single_gpu: SingleGpuStepTimes | None = None,
    one_virtual_node_s: float | None = None,
) -> events.ThroughputMeasured:
    return events.ThroughputMeasured(
        profile_key=key,
        num_gpus=num_gpus,
        iterations_per_s=rate,
        single_gpu=single_gpu,
        one_virtual_node_s=one_virtual_node_s,
        job_id="a",
        generation=1,
        source="profile",
        at_s=NOW_S + at_s,
    )


def times_of(history: History) -> JobStepTimes:
    times = job_step_times(history.state, JOB)
    assert times is not None
    return times


def test_the_fold_keeps_step_times_beside_later_speeds_of_the_profile() -> None:
    history = two_types().then(measured("new/b64", 1, 1.0, 1.0, ON_V100), measured("new/b64", 2, 1.5, 2.0))
    assert history.state.curves["new/b64"].single_gpu == ON_V100


def test_a_measured_type_has_its_own_times_and_another_is_predicted_by_their_speeds() -> None:
    history = two_types().then(measured("new/b64", 1, 1.0, 1.0, ON_V100), measured("new/b64@P100", 1, 0.25, 2.0))
    times = times_of(history)
    assert list(times.by_type) == ["", "P100"]
    assert times.by_type[""].at(32) == StepTime(32, pytest.approx(0.6))
    assert times.by_type["P100"].at(32) == StepTime(32, pytest.approx(2.4), measured=False)
    assert (times.by_type[""].gpu_type, times.by_type["P100"].gpu_type) == ("V100", "P100")
    assert times.step_s_V("") == pytest.approx((0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0))


def test_a_type_of_unknown_speed_has_no_times() -> None:
    assert job_step_times(two_types().state, JOB) is None
    assert list(times_of(two_types().then(measured("new/b64", 1, 1.0, 1.0, ON_V100))).by_type) == [""]


def test_curves_alone_say_nothing_about_parts_of_the_batch() -> None:
    assert job_step_times(two_types(curves={"linear/b64": LINEAR}).state, spec()) is None


def test_a_speed_in_training_corrects_all_step_times() -> None:
    history = two_types().then(measured("new/b64", 1, 1.0, 1.0, ON_V100), measured("new/b64", 1, 0.5, 2.0))
    assert times_of(history).step_s_V("")[::7] == pytest.approx((0.6, 2.0))


def test_communication_is_the_distributed_step_less_its_largest_part_on_each_type() -> None:
    on_p100 = SingleGpuStepTimes(
        num_virtual_nodes=8, step_s_by_virtual_nodes={1: 1.0, 4: 2.0, 8: 4.0}, reproducible="bitwise"
    )
    history = two_types().then(
        measured("new/b64", 1, 1.0, 1.0, ON_V100),
        measured("new/b64", 2, 1 / 0.75, 2.0),
        measured("new/b64", 4, 1 / 0.6, 3.0),
        measured("new/b64@P100", 1, 0.25, 4.0, on_p100),
        measured("new/b64@P100", 2, 1 / 2.1, 5.0),
    )
    v100, p100 = times_of(history).communication.values()
    assert (v100.at(2), v100.at(4)) == pytest.approx((0.15, 0.2))
    assert (p100.at(2), p100.at(4)) == pytest.approx((0.1, 0.2))


def test_a_step_with_one_virtual_node_on_each_gpu_tells_the_communication_and_training_keeps_it() -> None:
    history = two_types().then(
        measured("new/b64", 1, 1.0, 1.0, ON_V100),
        measured("new/b64", 2, 1 / 0.75, 2.0, one_virtual_node_s=0.32),
        measured("new/b64", 4, 1 / 0.6, 3.0),
        measured("new/b64", 2, 1 / 0.9, 4.0),
    )
    communication = times_of(history).communication[""]
    assert (communication.at(2), communication.at(4)) == pytest.approx((0.02, 0.2))


@pytest.mark.parametrize(("rate", "communication_s"), [(0.25, 0.6), (2.0, 0.15)])
def test_a_type_without_step_times_communicates_as_the_measured_one_and_longer_if_it_is_slower(
    rate: float, communication_s: float
) -> None:
    history = two_types().then(
        measured("new/b64", 1, 1.0, 1.0, ON_V100),
        measured("new/b64", 2, 1 / 0.75, 2.0),
        measured("new/b64@P100", 1, rate, 3.0),
    )
    assert times_of(history).communication["P100"].at(2) == pytest.approx(communication_s)


def test_a_type_that_was_measured_on_one_gpu_communicates_as_predicted() -> None:
    on_p100 = SingleGpuStepTimes(
        num_virtual_nodes=8, step_s_by_virtual_nodes={1: 1.0, 4: 2.0, 8: 4.0}, reproducible="bitwise"
    )
    times = times_of(
        two_types().then(
            measured("new/b64", 1, 1.0, 1.0, ON_V100),
            measured("new/b64", 2, 1 / 0.75, 2.0),
            measured("new/b64@P100", 1, 0.25, 3.0, on_p100),
        )
    )
    v100, p100 = times.communication.values()
    assert (v100.at(2), v100.measured) == (pytest.approx(0.15), True)
    assert (p100.at(2), p100.measured) == (pytest.approx(0.6), False), "four times as slow"


def test_parts_that_a_run_did_not_measure_are_predicted_from_the_other_type() -> None:
    """The user's code failed with the first part on P100, which is a quarter as fast."""
    cut = SingleGpuStepTimes(num_virtual_nodes=8, step_s_by_virtual_nodes={8: 4.0}, reproducible="bitwise")
    times = times_of(
        two_types().then(
            measured("new/b64", 1, 1.0, 1.0, ON_V100),
            measured("new/b64@P100", 1, 0.25, 3.0, cut),
        )
    ).by_type["P100"]
    assert [tuple(point) for point in times.points_P] == [
        (8, pytest.approx(1.2), False),
        (16, pytest.approx(1.6), False),
        (32, pytest.approx(2.4), False),
        (64, 4.0, True),
    ]
