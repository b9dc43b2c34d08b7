"""Given jobs whose speed nobody knows, they are measured one after another, and nobody waits for a slow one."""

from typing import Any

import pytest

import services.allocator.pre_runs
from services.admission.policy import POLICY as ADMISSION
from services.allocator.policy import POLICY as ALLOCATOR
from services.allocator.policy import wake_at_s
from services.allocator.pre_runs import PATIENCE_S
from services.placement.policy import POLICY as PLACEMENT
from shared.messages import events
from tests.histories import NOW_S, History, pool, submit

COST_S = 2.0
SLOW_S = NOW_S + COST_S + PATIENCE_S


def unknown(history: History, *job_ids: str, **spec: object) -> History:
    """Each of a profile of its own that nobody knows."""
    wishes = [submit(id_, model_name=id_, **{"deadline_s": NOW_S + 9_000.0} | spec) for id_ in job_ids]
    history.decided(ADMISSION, *wishes)
    return planned(history, NOW_S)


def planned(history: History, at_s: float) -> History:
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    return history


def measured(history: History, job_id: str, rate: float, at_s: float) -> History:
    """The level that is under way is over."""
    job = history.state.live_jobs[job_id]
    fact = events.ThroughputMeasured(
        profile_key=f"{job_id}/b64",
        num_gpus=len(job.gpus),
        iterations_per_s=rate,
        job_id=job_id,
        generation=job.generation,
        source="profile",
        at_s=at_s,
    )
    return history.then(fact)


def shares(history: History) -> dict[str, int]:
    return {id_: job.num_gpus for id_, job in sorted(history.state.live_jobs.items()) if job.num_gpus}


def test_a_second_pre_run_waits_for_one_that_goes_on() -> None:
    history = unknown(pool(8), "a", "b")
    assert shares(history) == {"a": 1}
    planned(measured(history, "a", 1.0, NOW_S + 5.0), NOW_S + 5.0)
    assert shares(history) == {"a": 2}
    planned(history, SLOW_S)  # its second level began later
    assert shares(history) == {"a": 2}


def test_nobody_waits_for_a_slow_one() -> None:
    history = unknown(pool(8), "a", "b", "c")
    assert wake_at_s(history.state) == SLOW_S
    planned(history, SLOW_S - 0.1)
    assert shares(history) == {"a": 1}
    planned(history, SLOW_S)
    assert shares(history) == {"a": 1, "b": 1}
    assert wake_at_s(history.state) == SLOW_S + COST_S + PATIENCE_S  # for c
    planned(measured(history, "b", 1.0, SLOW_S + 1.0), SLOW_S + 1.0)
    assert shares(history) == {"a": 1, "b": 2}
    planned(history, SLOW_S + 1.0 + COST_S + PATIENCE_S)
    assert shares(history) == {"a": 1, "b": 2, "c": 1}
    assert wake_at_s(history.state) is None


def test_a_pre_run_beside_a_slow_one_ends_with_what_that_leaves() -> None:
    history = planned(unknown(pool(4), "a", "b"), SLOW_S)
    planned(measured(history, "b", 1.0, SLOW_S + 1.0), SLOW_S + 1.0)
    measured(history, "b", 2.0, SLOW_S + 2.0)
    completed, allocated = history.decided(ALLOCATOR, now_s=SLOW_S + 2.0)
    assert (completed.profile_key, completed.measured_to) == ("b/b64", 2)
    assert allocated.num_gpus_by_job == {"a": 1, "b": 2}
    (admitted,) = history.decided(ADMISSION, now_s=SLOW_S + 2.0)
    assert (type(admitted), admitted.job_id) == (events.JobAdmitted, "b")


def test_a_slow_one_goes_on_when_the_one_beside_it_has_been_measured() -> None:
    history = planned(unknown(pool(8), "a", "b"), SLOW_S)
    planned(measured(history, "a", 1.0, SLOW_S + 1.0), SLOW_S + 1.0)
    assert shares(history) == {"b": 1}  # whose level is undisturbed now
    planned(measured(history, "b", 1.0, SLOW_S + 2.0), SLOW_S + 2.0)
    assert shares(history) == {"a": 2}  # the oldest


def test_one_that_finds_no_gpus_holds_nobody_up() -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("promised", deadline_s=NOW_S + 60.0))  # on two GPUs
    unknown(history, "a", min_gpus=4)
    unknown(history, "b")
    assert shares(history)["promised"] >= 2
    assert history.state.live_jobs["a"].num_gpus == 0
    assert history.state.live_jobs["b"].num_gpus == 1


def test_two_jobs_of_one_profile_are_measured_once() -> None:
    history = pool(8)
    wishes = [submit(id_, model_name="a", deadline_s=NOW_S + 9_000.0) for id_ in ("a", "b")]
    history.decided(ADMISSION, *wishes)
    planned(planned(history, NOW_S), SLOW_S)
    assert shares(history) == {"a": 1}
    assert wake_at_s(history.state) is None


def test_what_the_promises_can_spare_is_planned_once_however_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = pool(4)
    history.decided(ADMISSION, *[submit(f"promised-{n}", deadline_s=NOW_S + 100.0) for n in range(3)])
    plan, planned_on = services.allocator.pre_runs.planned_pool, list[int]()

    def noting(*args: Any, num_gpus: int = 4) -> Any:
        planned_on.append(num_gpus)
        return plan(*args, num_gpus=num_gpus)

    monkeypatch.setattr(services.allocator.pre_runs, "planned_pool", noting)
    unknown(history, *[f"unknown-{number}" for number in range(20)])
    assert "unknown-0" not in shares(history)
    assert sorted(planned_on) == sorted(set(planned_on)), "once for each number of GPUs"
