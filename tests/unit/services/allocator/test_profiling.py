"""Given jobs of unknown speed, profiling runs measure them one after another, and no job waits for a slow run."""

from typing import Any

import pytest

import elasticflow.services.allocator.profiling
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.allocator.policy import wake_at_s
from elasticflow.services.allocator.profiling import UNDISTURBED_S
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from testbed.histories import NOW_S, History, pool, submit

COST_S = 2.0
SLOW_S = NOW_S + COST_S + UNDISTURBED_S


def unknown(history: History, *job_ids: str, **spec: object) -> History:
    """Jobs of unknown speed, each with a profile of its own."""
    commands = [submit(id_, model_name=id_, **{"deadline_s": NOW_S + 9_000.0} | spec) for id_ in job_ids]
    history.decided(ADMISSION, *commands)
    return planned(history, NOW_S)


def planned(history: History, at_s: float) -> History:
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    return history


def measured(history: History, job_id: str, rate: float, at_s: float) -> History:
    """The present level of the profiling run ends."""
    job = history.state.live_jobs[job_id]
    event = events.ThroughputMeasured(
        profile_key=f"{job_id}/b64",
        num_gpus=len(job.gpus),
        iterations_per_s=rate,
        job_id=job_id,
        generation=job.generation,
        source="profile",
        at_s=at_s,
    )
    return history.then(event)


def shares(history: History) -> dict[str, int]:
    return {id_: job.num_gpus for id_, job in sorted(history.state.live_jobs.items()) if job.num_gpus}


def test_a_second_profiling_run_waits_for_one_that_makes_progress() -> None:
    history = unknown(pool(8), "a", "b")
    assert shares(history) == {"a": 1}
    planned(measured(history, "a", 1.0, NOW_S + 5.0), NOW_S + 5.0)
    assert shares(history) == {"a": 2}
    planned(history, SLOW_S)  # its second level began later
    assert shares(history) == {"a": 2}


def test_no_profiling_run_waits_for_a_slow_one() -> None:
    history = unknown(pool(8), "a", "b", "c")
    assert wake_at_s(history.state) == SLOW_S
    planned(history, SLOW_S - 0.1)
    assert shares(history) == {"a": 1}
    planned(history, SLOW_S)
    assert shares(history) == {"a": 1, "b": 1}
    assert wake_at_s(history.state) == SLOW_S + COST_S + UNDISTURBED_S  # for c
    planned(measured(history, "b", 1.0, SLOW_S + 1.0), SLOW_S + 1.0)
    assert shares(history) == {"a": 1, "b": 2}
    planned(history, SLOW_S + 1.0 + COST_S + UNDISTURBED_S)
    assert shares(history) == {"a": 1, "b": 2, "c": 1}
    assert wake_at_s(history.state) is None


def test_a_profiling_run_beside_a_slow_one_ends_with_the_gpus_that_it_leaves() -> None:
    history = planned(unknown(pool(4), "a", "b"), SLOW_S)
    planned(measured(history, "b", 1.0, SLOW_S + 1.0), SLOW_S + 1.0)
    measured(history, "b", 2.0, SLOW_S + 2.0)
    completed, allocated = history.decided(ALLOCATOR, now_s=SLOW_S + 2.0)
    assert (completed.profile_key, completed.measured_to) == ("b/b64", 2)
    assert allocated.num_gpus_by_job == {"a": 1, "b": 2}
    (admitted,) = history.decided(ADMISSION, now_s=SLOW_S + 2.0)
    assert (type(admitted), admitted.job_id) == (events.JobAdmitted, "b")


def test_a_slow_profiling_run_continues_when_the_one_beside_it_is_complete() -> None:
    history = planned(unknown(pool(8), "a", "b"), SLOW_S)
    planned(measured(history, "a", 1.0, SLOW_S + 1.0), SLOW_S + 1.0)
    assert shares(history) == {"b": 1}  # whose level is undisturbed now
    planned(measured(history, "b", 1.0, SLOW_S + 2.0), SLOW_S + 2.0)
    assert shares(history) == {"a": 2}  # the oldest


def test_a_profiling_run_without_gpus_blocks_no_other() -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("promised", deadline_s=NOW_S + 60.0))  # on two GPUs
    unknown(history, "a", min_gpus=4)
    unknown(history, "b")
    assert shares(history)["promised"] >= 2
    assert history.state.live_jobs["a"].num_gpus == 0
    assert history.state.live_jobs["b"].num_gpus == 1


def test_two_jobs_of_one_profile_are_measured_once() -> None:
    history = pool(8)
    commands = [submit(id_, model_name="a", deadline_s=NOW_S + 9_000.0) for id_ in ("a", "b")]
    history.decided(ADMISSION, *commands)
    planned(planned(history, NOW_S), SLOW_S)
    assert shares(history) == {"a": 1}
    assert wake_at_s(history.state) is None


def test_promises_beside_profiling_runs_are_planned_once_for_any_number_of_waiting_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = pool(4)
    history.decided(ADMISSION, *[submit(f"promised-{n}", deadline_s=NOW_S + 100.0) for n in range(3)])
    plan, planned_on = elasticflow.services.allocator.profiling.planned_pool, list[int]()

    def noting(*args: Any, num_gpus: int = 4) -> Any:
        planned_on.append(num_gpus)
        return plan(*args, num_gpus=num_gpus)

    monkeypatch.setattr(elasticflow.services.allocator.profiling, "planned_pool", noting)
    unknown(history, *[f"unknown-{number}" for number in range(20)])
    assert "unknown-0" not in shares(history)
    assert sorted(planned_on) == sorted(set(planned_on)), "once for each number of GPUs"
