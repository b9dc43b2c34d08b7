"""Given jobs that declare how long a start may take, their starts are learned by profile, and what they do is known."""

from dataclasses import replace
from typing import Any

from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.fold.workers import FASTER_START_WEIGHT, MAX_START_COST_S
from elasticflow.shared.state.job import Job
from testbed.histories import NOW_S, History, pool, spec
from tests.support.worker_events import admitted, crashed, placed

KEY = spec().measured_key


def placed_job(**declared: Any) -> History:
    """Job a on one GPU, placed at second 1, which has not started."""
    return pool(4, stop_free=True).then(admitted(spec=spec(**declared)), placed(1, "node-0:0"))


def started(generation: int, iteration: int, *, at_s: float) -> events.GenerationStarted:
    return events.GenerationStarted(
        job_id="a", generation=generation, num_gpus=1, iteration=iteration, at_s=NOW_S + at_s
    )


def job(history: History) -> Job:
    return history.state.live_jobs["a"]


def phase(text: str, generation: int = 1) -> events.JobWarned:
    return events.JobWarned(job_id="a", generation=generation, warning=f"slow: {text}", phase=text, at_s=NOW_S)


def test_a_declared_start_is_learned_of_its_profile_and_makes_no_other_dearer() -> None:
    state = placed_job(start_timeout_s=600.0).then(started(1, 0, at_s=401.0)).state
    assert (dict(state.start_costs), state.start_cost_s) == ({KEY: 400.0}, 0.0)
    state = placed_job().then(started(1, 0, at_s=401.0)).state
    assert (dict(state.start_costs), state.start_cost_s) == ({}, MAX_START_COST_S)


def test_a_faster_start_lowers_the_estimate_gradually_and_a_slower_one_raises_it_at_once() -> None:
    history = placed_job(start_timeout_s=600.0).then(started(1, 0, at_s=401.0))
    history.then(crashed(1), placed(2, "node-0:0"), started(2, 0, at_s=102.0))
    assert history.state.start_costs[KEY] == 400.0 + FASTER_START_WEIGHT * (100.0 - 400.0)
    history.then(crashed(2), placed(3, "node-0:0"), started(3, 0, at_s=503.0))
    assert history.state.start_costs[KEY] == 500.0


def test_no_start_counts_as_longer_than_the_job_may_start() -> None:
    """Its packages may have taken longer."""
    history = placed_job(start_timeout_s=300.0).then(started(1, 0, at_s=901.0))
    assert history.state.start_costs[KEY] == 300.0


def test_a_switch_without_a_stop_says_nothing_about_a_fast_start() -> None:
    history = placed_job(start_timeout_s=600.0).then(started(1, 0, at_s=401.0))
    history.then(placed(2, "node-0:0", "node-0:1"), started(2, 9, at_s=12.0))
    assert history.state.start_costs[KEY] == 400.0


def test_what_a_start_does_is_known_until_the_job_trains() -> None:
    history = placed_job().then(phase("in init_model()"), phase("in init_dataset()"), phase("in init_model()"))
    assert job(history).start_phases == ("in init_model()", "in init_dataset()"), "each once: workers take no turns"
    assert job(history).warnings == ()
    before = job(history)
    assert job(history.then(phase("in another start", generation=2))) is before
    history.then(started(1, 0, at_s=9.0), phase("late"))
    assert job(history).start_phases == ()


def test_another_start_begins_without_phases() -> None:
    history = placed_job().then(phase("in init_model()"), crashed(1), placed(2, "node-0:0"))
    assert job(history).start_phases == ()


def test_a_job_has_its_own_timeouts_within_the_bounds_of_its_pool() -> None:
    config = PoolConfig(stall_timeout_s=60.0, max_job_timeout_s=900.0)
    usual = config.timeouts_of(spec())
    assert (usual.stall_timeout_s, usual.longest_start_s) == (60.0, 60.0)
    declared = config.timeouts_of(spec(start_timeout_s=600.0, stall_timeout_s=90.0))
    assert (declared.stall_timeout_s, declared.longest_start_s, declared.late_start_s) == (90.0, 600.0, 510.0)
    bounded = config.timeouts_of(spec(start_timeout_s=5_000.0))
    assert (bounded.stall_timeout_s, bounded.longest_start_s) == (60.0, 900.0)
    patient = PoolConfig(stall_timeout_s=7_200.0).timeouts_of(spec(start_timeout_s=5_000.0))
    assert patient.longest_start_s == 5_000.0, "never less than a job gets that declares nothing"


def test_jobs_that_differ_in_their_timeouts_share_a_profile() -> None:
    unnamed = spec(model_name="")
    assert replace(unnamed, start_timeout_s=600.0, stall_timeout_s=90.0).measured_key == unnamed.measured_key
