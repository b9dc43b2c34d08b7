"""A job's steps on each GPU type, and the recommended split, as `eflow profile --types` shows them."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.cli.profile import show_types
from elasticflow.history.profile_views import SplitView, TypesView, types_view
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.measurements import SingleGpuStepTimes
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import MAX_CORRECTION, job_step_times
from testbed.histories import NOW_S, History, spec
from tests.support.two_types import two_types
from tests.support.worker_events import admitted, joined

JOB = spec(model_name="new")
ON_V100 = SingleGpuStepTimes(
    num_virtual_nodes=8, step_s_by_virtual_nodes={1: 0.1, 2: 0.2, 4: 0.4, 8: 0.8}, reproducible="bitwise"
)


def speed(key: str, num_gpus: int, rate: float, **changes: Any) -> events.ThroughputMeasured:
    values = {"job_id": "a", "generation": 1, "source": "profile", "at_s": NOW_S + num_gpus} | changes
    return events.ThroughputMeasured(profile_key=key, num_gpus=num_gpus, iterations_per_s=rate, **values)


def profiled(*, fast: int = 1, slow: int = 4) -> History:
    """A virtual node takes 0.1 s on V100, which is measured, and 0.4 s on P100, which is predicted."""
    fast_s = speed("new/b64", 1, 1 / 0.8, single_gpu=ON_V100)
    return two_types(fast=fast, slow=slow).then(fast_s, speed("new/b64@P100", 1, 1 / 3.2))


def split_of(view: TypesView) -> SplitView:
    assert view.split is not None, view.obstacle
    return view.split


def test_steps_on_a_measured_and_on_a_predicted_type() -> None:
    view = types_view(profiled().state, JOB)
    assert view.num_virtual_nodes == 8
    fast, slow = view.types
    assert (fast.gpu_type, fast.num_gpus, slow.gpu_type, slow.num_gpus) == ("V100", 1, "P100", 4)
    assert [(point.num_virtual_nodes, point.num_samples, point.measured) for point in fast.steps] == [
        (1, 8, True),
        (2, 16, True),
        (3, 24, True),
        (4, 32, True),
        (6, 48, True),
        (8, 64, True),
    ]
    assert not any(point.measured for point in slow.steps)
    assert [round(point.step_s, 6) for point in slow.steps] == [0.4, 0.8, 1.2, 1.6, 2.4, 3.2]
    assert slow.steps[-1].samples_per_s == pytest.approx(20.0)
    assert (fast.iterations_per_s, slow.iterations_per_s) == ({1: 1 / 0.8}, {1: 1 / 3.2})


def test_the_best_split_uses_all_live_gpus_or_those_that_the_user_names() -> None:
    state = profiled().state
    split = split_of(types_view(state, JOB))
    assert split.virtual_nodes == {"V100": (4,), "P100": (1, 1, 1, 1)}
    assert split.num_gpus == {"V100": 1, "P100": 4}
    assert (split.step_s, split.speedup, split.measured_step_s) == (pytest.approx(0.4), pytest.approx(2.0), None)
    assert split.alone_s == pytest.approx({"V100": 0.8, "P100": 0.8})
    assert split_of(types_view(state, JOB, {"V100": 2, "P100": 1})).virtual_nodes == {"V100": (4, 4)}


def test_a_split_on_one_type_shows_the_step_of_its_profile() -> None:
    state = profiled().then(speed("new/b64", 2, 2.0)).state
    assert split_of(types_view(state, JOB, {"V100": 2})).measured_step_s == 0.5


def trained(rate: float, *counts: int) -> History:
    """A job has trained with so many virtual nodes on one V100, then on P100, and ended."""
    history = profiled().then(admitted("a", spec=JOB))
    gpus = tuple(GpuId("node-0" if not rank else "node-1", max(rank - 1, 0)) for rank in range(len(counts)))
    mixed = events.PlacedJob(
        job_id="a", generation=1, gpus=gpus, virtual_nodes_by_rank=counts, num_added_gpus=len(counts) - 1
    )
    history.then(events.PlacementDecided(placements=(mixed,), at_s=NOW_S)).started("a", at_s=NOW_S)
    for at_s in (4.0, 6.0):
        progress = {"iteration": int(at_s), "iterations_per_s": rate if at_s > 5.0 else 9.0, "at_s": NOW_S + at_s}
        history.then(events.JobProgressed(job_id="a", generation=1, **progress))
    return history.then(events.JobCancelled(job_id="a", reason="", at_s=NOW_S + 7.0))


def test_a_split_that_a_job_has_trained_with_shows_its_step() -> None:
    split = split_of(types_view(trained(2.0, 4, 1, 1, 1, 1).state, JOB))
    assert (split.measured_step_s, split.correction) == (0.5, pytest.approx(1.25))


def test_a_measured_mix_corrects_the_prediction_of_another() -> None:
    """Its step took 0.72 s instead of 0.6 s."""
    split = split_of(types_view(trained(1 / 0.72, 6, 1, 1).state, JOB))
    assert split.virtual_nodes == {"V100": (4,), "P100": (1, 1, 1, 1)}
    assert (split.measured_step_s, split.correction) == (None, pytest.approx(1.2))
    assert (split.step_s, split.speedup) == (pytest.approx(0.48), pytest.approx(0.8 / 0.48))


def test_the_correction_is_bounded() -> None:
    assert split_of(types_view(trained(0.1, 6, 1, 1).state, JOB)).correction == MAX_CORRECTION


def test_a_type_of_unknown_speed_is_no_part_of_a_split() -> None:
    state = profiled().state
    with pytest.raises(BadSettings, match=r"--mix: no speed of .* is known on K80, only on V100, P100$"):
        types_view(state, JOB, {"V100": 1, "K80": 2})


def test_without_measured_steps_there_is_no_split() -> None:
    view = types_view(two_types().state, spec())
    assert (view.split, view.num_virtual_nodes) == (None, None)
    assert view.obstacle.startswith("no steps of parts of the batch are measured")
    assert [each.steps for each in view.types] == [(), ()]
    assert view.types[0].iterations_per_s[2] == 2.0


def test_a_type_on_which_the_profiling_run_failed_says_why() -> None:
    history = profiled().then(events.ProfileRequested(job_id="a", tenant="lab", spec=JOB, deadline_s=None, at_s=NOW_S))
    history.then(events.ProfilingFailed(job_id="a", generation=0, gpu_type="", error="no memory", at_s=NOW_S))
    fast, slow = types_view(history.state, JOB).types
    assert (fast.failure, fast.steps, slow.failure) == ("no memory", (), "")


def test_a_mix_with_a_type_on_which_the_profiling_run_failed_says_why() -> None:
    history = profiled().then(joined("three", "node-2", gpu_type="K80"))
    job = replace(JOB, gpu_type="K80")
    history.then(events.ProfileRequested(job_id="a", tenant="lab", spec=job, deadline_s=None, at_s=NOW_S))
    history.then(events.ProfilingFailed(job_id="a", generation=0, gpu_type="K80", error="no memory", at_s=NOW_S))
    with pytest.raises(BadSettings, match="on K80, only on V100, P100; its profiling run failed there: no memory"):
        types_view(history.state, JOB, {"V100": 1, "K80": 1})


def with_k80(**curves: dict[int, float]) -> History:
    """A type on which the job was never measured, and other profiles of the pool's configuration."""
    named = {key.replace("_on_", "/b64@").replace("_", "/b64"): curve for key, curve in curves.items()}
    history = profiled().then(joined("three", "node-2", gpu_type="K80"))
    return history.then(events.PoolConfigured(config=PoolConfig(curves=named), at_s=NOW_S))


def test_a_type_that_was_never_measured_is_predicted_by_profiles_that_are_known_on_both() -> None:
    """K80 is a quarter as fast as V100 with one profile and a ninth with another: a sixth in the geometric mean."""
    history = with_k80(m_={1: 4.0}, m_on_K80={1: 1.0}, n_={1: 9.0}, n_on_K80={1: 1.0}, o_on_K80={1: 7.0})
    view = types_view(history.state, JOB)
    k80 = view.types[2]
    assert (k80.gpu_type, k80.predicted_from, k80.iterations_per_s) == ("K80", "V100", {})
    assert [round(point.step_s, 6) for point in k80.steps] == [0.6, 1.2, 1.8, 2.4, 3.6, 4.8]
    assert not any(point.measured for point in k80.steps)
    assert [each.predicted_from for each in view.types[:2]] == ["", ""]
    assert "K80" not in split_of(view).num_gpus
    assert "K80" not in job_step_times(history.state, JOB).by_type  # pyright: ignore[reportOptionalMemberAccess]


def test_a_type_that_no_other_profile_knows_or_that_failed_is_not_predicted() -> None:
    assert types_view(with_k80(m_={1: 4.0}).state, JOB).types[2].steps == ()
    history = with_k80(m_={1: 4.0}, m_on_K80={1: 1.0})
    job = replace(JOB, gpu_type="K80")
    history.then(events.ProfileRequested(job_id="a", tenant="lab", spec=job, deadline_s=None, at_s=NOW_S))
    history.then(events.ProfilingFailed(job_id="a", generation=0, gpu_type="K80", error="no memory", at_s=NOW_S))
    k80 = types_view(history.state, JOB).types[2]
    assert (k80.steps, k80.predicted_from, k80.failure) == ((), "", "no memory")


def test_predicted_steps_and_communication_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    history = with_k80(m_={1: 4.0}, m_on_K80={1: 1.0}).then(speed("new/b64", 2, 2.0))
    show_types(types_view(history.state, JOB))
    shown = capsys.readouterr().out
    k80 = next(line for line in shown.splitlines() if line.startswith("K80 "))
    assert k80.split() == ["K80", "4", "1", "8", "400", "20", "predicted"]
    assert "K80 is predicted from V100 by other profiles that are known on both; no promise and no split" in shown
    assert "communication on V100, measured: 100 ms on 2 GPUs" in shown
    assert "communication on P100, predicted: 400 ms on 2 GPUs" in shown
    assert "communication on K80" not in shown


def test_only_the_type_that_the_user_names_is_shown() -> None:
    assert [each.gpu_type for each in types_view(profiled().state, spec(model_name="new", gpu_type="P100")).types] == [
        "P100"
    ]
