"""What the sender of a job of unknown speed learns at once: when it is measured, and an estimate."""

from typing import Any

import pytest

from elasticflow.history.formatting import undecided_in_words
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from testbed.histories import NOW_S, History, pool, submit
from tests.support.worker_events import measured

IN_A_WEEK_S = NOW_S + 7 * 86_400.0


def asked(history: History, job_id: str = "u", *, model_name: str = "u", **changes: Any) -> events.ProfileRequested:
    command = submit(job_id, model_name=model_name, deadline_s=IN_A_WEEK_S, **changes)
    (event,) = history.decided(ADMISSION, command)
    assert isinstance(event, events.ProfileRequested)
    return event


def saturated(window_s: float) -> History:
    """Four promised jobs on all eight GPUs, which take 52 s there and have so many seconds."""
    history = pool(8)
    history.decided(ADMISSION, *[submit(f"p{n}", deadline_s=NOW_S + window_s) for n in range(4)])
    history.decided(ALLOCATOR)
    history.decided(PLACEMENT)
    return history


@pytest.mark.parametrize("history", [pool(8), saturated(80.0), saturated(60.0)])
def test_a_job_is_measured_now_on_gpus_that_promises_leave_or_lend(history: History) -> None:
    event = asked(history)
    assert event.measured_from_s == NOW_S
    assert undecided_in_words(event) == "its speed is unknown, so it is measured on 1 GPU before the decision"
    history.decided(ALLOCATOR)
    assert history.state.num_gpus_by_job["u"] == 1


def test_a_sender_learns_when_promises_spare_gpus_if_none_can_lend_any() -> None:
    history = saturated(53.0)
    event = asked(history)
    assert event.measured_from_s == max(
        job.planned_share[1] for job in history.state.live_jobs.values() if job.promised
    )
    assert "; promises spare no GPU for that now, by the plan 1 GPU from " in undecided_in_words(event)
    assert "(in 52.0s) on" in undecided_in_words(event)
    history.decided(ALLOCATOR)
    assert "u" not in history.state.num_gpus_by_job


def test_promises_lend_at_most_half_of_the_gpus() -> None:
    history = saturated(70.0)
    assert (asked(history, "four", min_gpus=4).measured_from_s or 0.0) == NOW_S
    assert (asked(history, "eight", model_name="other", min_gpus=8).measured_from_s or 0.0) > NOW_S


def test_a_sender_learns_how_many_measurements_come_first() -> None:
    history = pool(8)
    assert asked(history, "a", model_name="a").num_runs_before == 0
    assert asked(history, "b", model_name="a").num_runs_before == 0, "of the same profile"
    event = asked(history, "c")
    assert event.num_runs_before == 1
    assert "so it is measured on 1 GPU after 1 other job before the decision" in undecided_in_words(event)


def test_a_pool_without_gpus_plans_no_measurement() -> None:
    event = asked(History().configured())
    assert (event.measured_from_s, event.waits_for) == (None, "gpus")


@pytest.mark.parametrize(
    ("batch_size", "iterations_per_s", "takes"),
    [
        (64, {1: 2.0, 2: 4.0}, "4 iterations/s on 2 GPUs, where its 100 iterations take about 25 s"),
        (32, {1: 2.0, 2: 4.0}, "4 iterations/s on 2 GPUs, where its 100 iterations take between 25 s and 50 s"),
        (256, {1: 2.0, 16: 9.0}, "2 iterations/s on 1 GPU, where its 100 iterations take between 12 s and 50 s"),
    ],
)
def test_measurements_of_the_same_model_bound_the_time(
    batch_size: int, iterations_per_s: dict[int, float], takes: str
) -> None:
    history, profile_key = pool(8), f"u/b{batch_size}"
    for num_gpus, rate in iterations_per_s.items():
        history.then(measured(profile_key, num_gpus, rate, job_id="earlier"))
    event = asked(history)
    assert event.estimate == f"in batches of {batch_size}, this model makes {takes} by that measurement"
    assert undecided_in_words(event).endswith(f"before the decision; {event.estimate}")


def test_the_next_batch_size_counts_and_no_other_model() -> None:
    history = pool(8, curves={"u/b16": {1: 9.0}, "u/b48": {1: 5.0}, "uv/b64": {1: 70.0}, "v/b64": {1: 80.0}})
    assert asked(history).estimate.startswith("in batches of 48, this model makes 5 iterations/s on 1 GPU")
