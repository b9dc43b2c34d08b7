"""Given a torchrun script, whose workers restart at each change of GPUs, its unsaved work is worth its loss."""

from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import TORCHRUN, JobClass
from testbed.histories import NOW_S, History, pool, submit

SCRIPT = f"train:{TORCHRUN}"
WITHOUT_PROMISE: dict[str, Any] = {"job_class": JobClass.BEST_EFFORT, "deadline_s": None}


def planned(history: History, at_s: float) -> dict[str, int]:
    """The shares after the next decisions of allocator and placement."""
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    return {id_: job.num_gpus for id_, job in sorted(history.state.live_jobs.items()) if job.num_gpus}


def trains(num_gpus: int = 4, *, iteration: int = 0, saved: int = 0, **spec: Any) -> History:
    """A script of 100 iterations on all GPUs of the pool, 20 seconds after it started."""
    history = pool(num_gpus)
    history.decided(ADMISSION, submit("script", training_function=SCRIPT, **spec))
    assert planned(history, NOW_S) == {"script": num_gpus}
    history.started("script")
    return progressed(history, iteration, saved, NOW_S + 20.0)


def progressed(history: History, iteration: int, saved: int, at_s: float) -> History:
    report = events.JobProgressed(
        job_id="script",
        generation=history.state.live_jobs["script"].generation,
        iteration=iteration,
        checkpoint_iteration=saved,
        iterations_per_s=4.0,
        at_s=at_s,
    )
    return history.then(report)


def test_a_script_that_has_saved_nothing_keeps_its_gpus_until_it_has() -> None:
    history = trains(iteration=60, **WITHOUT_PROMISE)
    history.decided(ADMISSION, submit("other", **WITHOUT_PROMISE), now_s=NOW_S + 20.0)
    assert planned(history, NOW_S + 20.0) == {"script": 4}
    progressed(history, 64, 62, NOW_S + 21.0)
    assert planned(history, NOW_S + 21.0) == {"script": 2, "other": 2}


def test_a_script_with_nothing_to_lose_shares_at_once() -> None:
    history = trains(**WITHOUT_PROMISE)
    history.decided(ADMISSION, submit("other", **WITHOUT_PROMISE), now_s=NOW_S + 20.0)
    assert planned(history, NOW_S) == {"script": 2, "other": 2}


@pytest.mark.parametrize(("iteration", "num_gpus"), [(30, 8), (85, 4)])
def test_a_script_grows_where_that_pays_after_the_loss(iteration: int, num_gpus: int) -> None:
    """4 GPUs take 17.5 s for 70 iterations; 8 take 2 s for the resize, and 12.5 s for all 100."""
    history = trains(iteration=iteration, deadline_s=NOW_S + 300.0)
    history.nodes(4, 4, at_s=NOW_S + 20.0)
    assert planned(history, NOW_S + 20.0) == {"script": num_gpus}


def test_a_promise_budgets_the_loss_so_that_the_script_keeps_its_gpus_beside_a_new_promise() -> None:
    """On two GPUs it would need 50 s for all 100 iterations, and has 30."""
    history = trains(iteration=60, deadline_s=NOW_S + 50.0)
    other = submit("other", deadline_s=NOW_S + 20.0 + 90.0)
    (answer,) = history.decided(ADMISSION, other, now_s=NOW_S + 20.0)
    assert isinstance(answer, events.JobAdmitted), "behind the script"
    assert planned(history, NOW_S + 20.0) == {"script": 4}


@pytest.mark.parametrize(("function", "num_segments"), [("train:Digits", 2), (SCRIPT, 1)])
def test_a_promise_to_a_script_has_one_number_of_gpus(function: str, num_segments: int) -> None:
    """Another job trains on two GPUs, and on four when the first job is done."""
    history = pool(4)
    history.decided(ADMISSION, submit("first", deadline_s=NOW_S + 33.0, max_iterations=60))
    second = submit("second", training_function=function, deadline_s=NOW_S + 75.0, max_iterations=150)
    (answer,) = history.decided(ADMISSION, second)
    assert isinstance(answer, events.JobAdmitted)
    assert len(answer.minimum_satisfactory_share) == 3 * num_segments


def test_a_profiling_run_takes_what_the_script_leaves_beyond_its_first_level() -> None:
    history = trains(iteration=60, max_iterations=1000, **WITHOUT_PROMISE)
    history.decided(ADMISSION, submit("new", model_name="new", deadline_s=NOW_S + 900.0), now_s=NOW_S + 20.0)
    assert planned(history, NOW_S + 20.0)["new"] == 1, "else it would never be decided"
    history = trains(iteration=60, **WITHOUT_PROMISE)
    history.decided(ADMISSION, submit("new", model_name="new", deadline_s=NOW_S + 900.0), now_s=NOW_S + 20.0)
    assert planned(history, NOW_S + 20.0) == {"script": 4}, "it ends in ten seconds"
    history = trains(iteration=60, **WITHOUT_PROMISE)
    history.nodes(4, 1, at_s=NOW_S + 20.0)
    history.decided(ADMISSION, submit("new", model_name="new", deadline_s=NOW_S + 900.0), now_s=NOW_S + 20.0)
    assert planned(history, NOW_S + 20.0) == {"new": 1, "script": 4}
    level = events.ThroughputMeasured(
        profile_key="new/b64",
        num_gpus=1,
        iterations_per_s=1.0,
        job_id="new",
        generation=history.state.live_jobs["new"].generation,
        source="profile",
        at_s=NOW_S + 22.0,
    )
    assert planned(history.then(level), NOW_S + 22.0) == {"new": 1, "script": 4}, "its profile is complete"
