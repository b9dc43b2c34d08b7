"""Given GPUs that no pre-run came to, a job tries them where nobody has a use for them."""

import math
from dataclasses import replace
from typing import Any

import pytest

from services.admission.policy import POLICY as ADMISSION
from services.allocator.policy import POLICY as ALLOCATOR
from services.allocator.trials import TRIAL_S, next_trial
from services.placement.policy import POLICY as PLACEMENT
from shared.messages import events
from shared.messages.job import TORCHRUN, JobClass
from shared.messages.job_state import Job
from shared.messages.pool_state import HeldQuote, spec_of
from shared.scheduling.planned_pool import planned_pool
from tests.histories import NOW_S, History, pool, submit

COST_S = 2.0
PROFILE = "new/b64"


def planned(history: History, now_s: float) -> Any:
    """What the allocator decided, if anything; and its placement."""
    decided = history.decided(ALLOCATOR, now_s=now_s)
    history.decided(PLACEMENT, now_s=now_s)
    return decided[-1] if decided else None


def measured(history: History, num_gpus: int, rate: float, at_s: float) -> None:
    history.then(
        events.ThroughputMeasured(
            profile_key=PROFILE,
            num_gpus=num_gpus,
            iterations_per_s=rate,
            job_id="a",
            generation=history.state.live_jobs["a"].generation,
            source="training",
            at_s=at_s,
        )
    )


def trains_on_four(
    rates: dict[int, float] | None = None, measured_to: int | None = 4, **spec: Any
) -> History:
    """A job of a profile that was measured when the pool had four GPUs; now there are eight more."""
    history = pool(4, resize_cost_s=COST_S, stop_free=True)
    history.decided(ADMISSION, submit("a", model_name="new", **{"deadline_s": NOW_S + 1_000.0} | spec))
    known = rates or {1: 1.0, 2: 2.0, 4: 4.0}
    history.then(
        events.ProfileCompleted(
            profile_key=PROFILE, iterations_per_s=known, measured_to=measured_to, at_s=NOW_S
        )
    )
    history.decided(ADMISSION)
    planned(history, NOW_S)
    history.started("a").nodes(4, 8, at_s=NOW_S + 1.0)
    return history


def job_of(history: History) -> Job:
    return history.state.live_jobs["a"]


def test_a_pre_run_says_how_far_it_came_where_more_might_help() -> None:
    for rates, measured_to in (((1.0, 2.0), 2), ((1.0, 1.05), None)):
        history = pool(2)
        history.decided(ADMISSION, submit("a", model_name="new"))
        for rate in rates:
            planned(history, NOW_S)
            measured(history, len(job_of(history).gpus), rate, NOW_S)
        completed = history.decided(ALLOCATOR)[0]
        assert isinstance(completed, events.ProfileCompleted)
        assert completed.measured_to == measured_to


def test_a_job_goes_to_more_gpus_than_are_known_and_stays_where_they_pay() -> None:
    history = trains_on_four()
    decided = planned(history, NOW_S + 1.0)
    assert (decided.tries, dict(decided.num_gpus_by_job)) == ("a", {"a": 8})
    assert decided.valid_until_s == NOW_S + 1.0 + COST_S + TRIAL_S
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    assert planned(history, NOW_S + 4.0) is None or job_of(history).num_gpus == 8
    measured(history, 8, 7.0, NOW_S + 12.0)
    after = planned(history, NOW_S + 12.0)
    assert (after.tries, job_of(history).num_gpus) == (None, 8)
    assert math.isfinite(history.state.curves[PROFILE].tried_to)


def test_a_job_that_is_no_faster_there_goes_back_and_nobody_tries_again() -> None:
    history = trains_on_four()
    planned(history, NOW_S + 1.0)
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    measured(history, 8, 4.1, NOW_S + 12.0)
    assert planned(history, NOW_S + 12.0).tries is None
    history.started("a", iteration=40, at_s=NOW_S + 14.0).nodes(4, 8, 16, at_s=NOW_S + 15.0)
    assert planned(history, NOW_S + 15.0).tries is None
    assert job_of(history).num_gpus <= 8


def test_a_trial_that_told_nothing_ends_and_is_not_begun_again() -> None:
    history = trains_on_four()
    until_s = planned(history, NOW_S + 1.0).valid_until_s
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    assert dict(planned(history, until_s).num_gpus_by_job) == {"a": 4}
    history.started("a", iteration=40, at_s=until_s + 1.0).nodes(4, 8, 1, at_s=until_s + 2.0)
    assert dict(planned(history, until_s + 2.0).num_gpus_by_job) == {"a": 4}


@pytest.mark.parametrize(
    ("spec", "rates", "measured_to"),
    [
        ({}, {1: 1.0, 2: 2.0, 4: 2.1}, 4),
        ({}, {1: 1.0, 2: 2.0, 4: 4.0}, None),
        ({"max_gpus": 4}, {1: 1.0, 2: 2.0, 4: 4.0}, 4),
        ({"global_batch_size": 6}, {1: 1.0, 2: 2.0, 4: 4.0}, 4),
    ],
    ids=["more does not help", "measured to its end", "out of its range", "more than the batch"],
)
def test_nobody_tries_what_cannot_help(
    spec: dict[str, Any], rates: dict[int, float], measured_to: int | None
) -> None:
    history = pool(4, resize_cost_s=COST_S, stop_free=True)
    wish = submit("a", model_name="new", deadline_s=NOW_S + 1_000.0, **spec)
    history.decided(ADMISSION, wish)
    history.then(
        events.ProfileCompleted(
            profile_key=wish.spec.profile_key, iterations_per_s=rates, measured_to=measured_to, at_s=NOW_S
        )
    )
    history.decided(ADMISSION)
    planned(history, NOW_S)
    history.started("a").nodes(4, 8, at_s=NOW_S + 1.0)
    assert planned(history, NOW_S + 1.0).tries is None


@pytest.mark.parametrize(
    ("stop_free", "training_function", "tries"),
    [(True, "train:Net", "a"), (False, "train:Net", None), (True, f"train:{TORCHRUN}", None)],
)
def test_whoever_would_have_to_stop_for_it_tries_nothing(
    stop_free: bool, training_function: str, tries: str | None
) -> None:
    history = trains_on_four(training_function=training_function)
    history.configured(resize_cost_s=COST_S, stop_free=stop_free)
    assert planned(history, NOW_S + 1.0).tries == tries


def test_a_promise_that_could_not_bear_a_trial_without_progress_tries_nothing() -> None:
    """100 iterations at 4/s take 25 s; a trial of which nothing comes costs as much again."""
    assert planned(trains_on_four(deadline_s=NOW_S + 40.0), NOW_S + 1.0).tries is None
    assert planned(trains_on_four(deadline_s=NOW_S + 60.0), NOW_S + 1.0).tries == "a"


def test_a_quote_that_is_held_is_as_good_as_a_promise() -> None:
    state, now_s = trains_on_four().state, NOW_S + 1.0
    pool = planned_pool(state, now_s)
    quote = HeldQuote(
        job_id="q",
        tenant="lab",
        spec=spec_of(state.live_jobs["a"]),
        deadline_s=NOW_S + 500.0,
        schedule=(),
        gpu_seconds=0.0,
        at_s=NOW_S,
        until_s=NOW_S + 60.0,
    )
    assert next_trial(state, pool, {"a": 4}, 8, now_s) is not None
    assert next_trial(state, replace(pool, held=(quote,)), {"a": 4}, 8, now_s) is None, "it would be lost"


def test_a_trial_that_makes_no_progress_breaks_no_promise() -> None:
    history = trains_on_four(deadline_s=NOW_S + 60.0)
    until_s = planned(history, NOW_S + 1.0).valid_until_s
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    planned(history, until_s)
    back_s = until_s + COST_S
    history.started("a", iteration=4, at_s=back_s)
    assert job_of(history).num_gpus == 4
    assert back_s + 96.0 / 4.0 <= NOW_S + 60.0
    assert not planned_pool(history.state, back_s).plan.late


def test_a_trial_for_which_others_would_have_to_move_is_not_begun() -> None:
    """Planned beside a job that stands still, the others hold 12 of the 14 GPUs: there are no 8 for it."""
    history, now_s = trains_on_four(deadline_s=NOW_S + 150.0), NOW_S + 1.0
    history.nodes(4, 8, 2, at_s=now_s)
    for wish in (
        submit("b", model_name="new", deadline_s=NOW_S + 180.0, max_iterations=540, min_gpus=2),
        submit("c", deadline_s=NOW_S + 180.0, max_iterations=260, min_gpus=8),
    ):
        assert isinstance(history.decided(ADMISSION, wish, now_s=now_s)[0], events.JobAdmitted)
    begun = next_trial(history.state, planned_pool(history.state, now_s), {"a": 4}, 4, now_s)
    assert begun is not None
    assert begun[0].num_gpus == 8
    decided = planned(history, now_s)
    assert (decided.tries, decided.num_gpus_by_job["a"]) == (None, 4)
    assert history.state.curves[PROFILE].tried_to == 4, "it may be tried later"


def test_whoever_has_a_use_for_the_gpus_gets_them() -> None:
    history = trains_on_four()
    planned(history, NOW_S + 1.0)
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    newcomer = submit("b", job_class=JobClass.BEST_EFFORT, deadline_s=None, max_iterations=10_000)
    history.decided(ADMISSION, newcomer, now_s=NOW_S + 4.0)
    decided = planned(history, NOW_S + 4.0)
    assert decided.num_gpus_by_job["b"] == 8
    assert decided.num_gpus_by_job["a"] == 4


def test_one_job_tries_at_a_time() -> None:
    history = trains_on_four()
    history.nodes(4, 8, 16, 16, at_s=NOW_S + 1.0)
    other = submit("b", model_name="new", deadline_s=NOW_S + 900.0, max_iterations=2_000)
    history.decided(ADMISSION, other, now_s=NOW_S + 1.0)
    decided = planned(history, NOW_S + 1.0)
    history.started("b", at_s=NOW_S + 2.0)
    again = planned(history, NOW_S + 2.0) or decided
    assert sorted(again.num_gpus_by_job.values()) == [4, 8]
