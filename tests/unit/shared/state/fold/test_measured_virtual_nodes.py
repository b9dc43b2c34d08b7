"""The number of virtual nodes that a profiling run has measured: of a profile, and of its jobs for life."""

from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.messages.measurements import SingleGpuStepTimes, VirtualNodeCount
from elasticflow.shared.state.fold.profiles import may_measure_virtual_nodes, virtual_nodes_of_profile
from elasticflow.shared.state.job import Job, Phase
from testbed.histories import LINEAR, NOW_S, History, pool, submit
from tests.support.two_types import two_types

SIXTEEN = VirtualNodeCount(count=16, source="measured", step_s_by_count={8: 1.0, 16: 1.01})
FOUR = VirtualNodeCount(count=4, source="code")
KEY = "new/b64"


def measured(history: History, num_gpus: int = 1, *, key: str = KEY, job_id: str = "a", **changes: Any) -> History:
    """The profiling run reports its speed."""
    job = history.state.live_jobs[job_id]
    event = events.ThroughputMeasured(
        profile_key=key,
        num_gpus=num_gpus,
        iterations_per_s=float(num_gpus),
        job_id=job_id,
        generation=job.generation,
        source="profile",
        at_s=NOW_S + 1.0 + history.state.sequence,
        **changes,
    )
    return history.then(event)


def profiling(history: History, job_id: str = "a", **changes: Any) -> History:
    history.decided(ADMISSION, submit(job_id, **{"model_name": "new", "deadline_s": NOW_S + 1_000.0} | changes))
    return planned(history)


def planned(history: History) -> History:
    history.decided(ALLOCATOR)
    history.decided(ADMISSION)
    history.decided(ALLOCATOR)
    history.decided(PLACEMENT)
    return history


def job(history: History, job_id: str = "a") -> Job:
    return history.state.live_jobs[job_id]


def single_gpu(count: int) -> SingleGpuStepTimes:
    return SingleGpuStepTimes(num_virtual_nodes=count, step_s_by_virtual_nodes={count: 1.0}, reproducible="bitwise")


def test_the_next_profiling_runs_and_the_admitted_job_have_what_the_first_measured() -> None:
    history = profiling(pool(2))
    assert (job(history).phase, job(history).num_virtual_nodes) == (Phase.PROFILING, 0)
    planned(measured(history, virtual_nodes=SIXTEEN))
    assert (job(history).phase, len(job(history).gpus), job(history).num_virtual_nodes) == (Phase.PROFILING, 2, 16)
    planned(measured(history, 2))
    assert (job(history).phase, job(history).num_virtual_nodes) == (Phase.ADMITTED, 16)
    assert history.state.curves[KEY].virtual_nodes == SIXTEEN


def test_later_jobs_of_the_profile_have_the_same_and_no_measurement_changes_it() -> None:
    history = profiling(pool(2))
    planned(measured(measured(history, virtual_nodes=SIXTEEN), 2))
    measured(history, virtual_nodes=FOUR)
    assert history.state.curves[KEY].virtual_nodes == SIXTEEN
    assert job(profiling(history, "b"), "b").num_virtual_nodes == 16
    assert job(profiling(history, "c", min_gpus=2), "c").num_virtual_nodes == 16
    assert job(history).num_virtual_nodes == 16


@pytest.mark.parametrize("entry", ["train:Net", f"train:{TORCHRUN}"])
def test_a_job_of_a_known_curve_without_it_keeps_the_default(entry: str) -> None:
    history = profiling(pool(2), model_name="linear", training_function=entry)
    assert (job(history).phase, job(history).num_virtual_nodes) == (Phase.ADMITTED, 0)
    measured(history, key="linear/b64", virtual_nodes=SIXTEEN)
    assert history.state.curves["linear/b64"].virtual_nodes is None, "its speeds are those of the default"
    assert job(profiling(history, "b", model_name="linear"), "b").num_virtual_nodes == 0


def test_torchrun_has_none() -> None:
    history = profiling(pool(2))
    measured(measured(history, virtual_nodes=SIXTEEN), 2)
    planned(history)
    assert job(profiling(history, "b", training_function=f"train:{TORCHRUN}"), "b").num_virtual_nodes == 0


def test_all_types_have_what_the_first_of_them_has_measured() -> None:
    """Also if two were measured at once: then the step times of the second are of another number, and not kept."""
    history = profiling(two_types())
    on_second = f"{KEY}@P100"
    assert may_measure_virtual_nodes(history.state, KEY)
    measured(history, key=on_second, virtual_nodes=SIXTEEN, single_gpu=single_gpu(16))
    assert not may_measure_virtual_nodes(history.state, KEY)
    measured(history, virtual_nodes=FOUR, single_gpu=single_gpu(4))
    assert virtual_nodes_of_profile(history.state, KEY) == SIXTEEN
    assert history.state.curves[KEY].virtual_nodes == SIXTEEN
    assert history.state.curves[KEY].single_gpu is None
    assert history.state.curves[KEY].iterations_per_s == {1: 1.0}
    assert history.state.curves[on_second].single_gpu == single_gpu(16)


def test_step_times_of_the_fast_mode_are_of_no_virtual_nodes() -> None:
    fast = SingleGpuStepTimes(num_virtual_nodes=64, step_s_by_virtual_nodes={64: 1.0}, reproducible="fast")
    history = measured(profiling(pool(2)), virtual_nodes=SIXTEEN)
    assert measured(history, single_gpu=fast).state.curves[KEY].single_gpu == fast


def test_an_owner_begins_with_what_no_owner_has() -> None:
    history = profiling(pool(2))
    planned(measured(measured(history, virtual_nodes=SIXTEEN), 2))
    assert job(profiling(history, "b", owner="alice"), "b").num_virtual_nodes == 16


def test_a_profile_of_one_virtual_node_is_measured_on_one_gpu() -> None:
    history = profiling(pool(4))
    planned(measured(history, virtual_nodes=VirtualNodeCount(count=1, source="measured")))
    assert (job(history).phase, job(history).num_virtual_nodes) == (Phase.ADMITTED, 1)
    assert max(LINEAR) > max(history.state.curves[KEY].iterations_per_s) == 1
