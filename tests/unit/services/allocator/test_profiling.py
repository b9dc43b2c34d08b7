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
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.scheduling.admission.planned_pool import (
    MEASUREMENT_S,
    ProfilingLoan,
    planned_pool,
    profiling_loans,
)
from elasticflow.shared.scheduling.jobs.scheduler_view import profile_known
from elasticflow.shared.state.pool import spec_of
from testbed.histories import NOW_S, History, pool, submit

COST_S = 2.0
SLOW_S = NOW_S + COST_S + UNDISTURBED_S


def unknown(history: History, *job_ids: str, **spec: Any) -> History:
    """Jobs of unknown speed, each with a profile of its own."""
    commands = [submit(id_, model_name=id_, deadline_s=NOW_S + 9_000.0, **spec) for id_ in job_ids]
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
    history.decided(ADMISSION, *[submit(f"promised-{n}", deadline_s=NOW_S + 53.0) for n in range(2)])
    plan, planned_on = elasticflow.services.allocator.profiling.promises_beside, list[Any]()

    def noting(*args: Any, **beside: Any) -> Any:
        planned_on.append((beside["num_aside"], beside["loans"]))
        return plan(*args, **beside)

    monkeypatch.setattr(elasticflow.services.allocator.profiling, "promises_beside", noting)
    unknown(history, *[f"unknown-{number}" for number in range(20)])
    assert "unknown-0" not in shares(history)
    assert planned_on
    assert len(planned_on) == len(set(planned_on)), "once for each number of GPUs"


# --- GPUs that promises lend (docs/adr/0112) -----------------------------------------------------------

LOAN_S = COST_S + MEASUREMENT_S


def saturated(window_s: float) -> History:
    """Four promised jobs on two GPUs each, which take 52 s and have so many; then one of unknown speed."""
    history = pool(8)
    history.decided(ADMISSION, *[submit(f"p{n}", deadline_s=NOW_S + window_s) for n in range(4)])
    planned(history, NOW_S)
    for number in range(4):
        history.started(f"p{number}", at_s=NOW_S + COST_S)
    history.decided(ADMISSION, submit("u", model_name="u", deadline_s=NOW_S + 9_000.0), now_s=NOW_S + 3.0)
    return planned(history, NOW_S + 3.0)


def promises_hold(history: History, at_s: float) -> bool:
    return not planned_pool(history.state, at_s, loans=profiling_loans(history.state, at_s)).plan.late


def test_promised_jobs_with_slack_lend_a_gpu_for_the_measurement() -> None:
    history = saturated(60.0)
    assert history.state.num_gpus_by_job == {"p0": 2, "p1": 2, "p2": 2, "p3": 1, "u": 1}
    assert history.state.lent_until_s == {"u": NOW_S + 3.0 + LOAN_S}
    assert wake_at_s(history.state) == NOW_S + 3.0 + LOAN_S
    assert promises_hold(history, NOW_S + 3.0)


def test_promised_jobs_without_slack_lend_nothing_and_are_asked_again_later_and_later() -> None:
    history = saturated(53.0)
    assert "u" not in history.state.num_gpus_by_job
    assert history.state.lent_until_s == {}
    assert wake_at_s(history.state) == NOW_S + 8.0
    planned(history, NOW_S + 33.0)
    assert wake_at_s(history.state) == NOW_S + 48.0


def test_a_lent_run_gets_more_gpus_while_promises_allow_it_but_at_most_half_of_them() -> None:
    history, at_s, levels = saturated(66.0), NOW_S + 3.0, list[int]()
    while "u" in history.state.lent_until_s and not profile_known(history.state, spec_of(history.state.live_jobs["u"])):
        levels.append(history.state.live_jobs["u"].num_gpus)
        at_s += 2.0
        planned(measured(history, "u", float(levels[-1]), at_s), at_s)
        assert promises_hold(history, at_s)
    assert levels == [1, 2, 4]
    (admitted,) = history.decided(ADMISSION, now_s=at_s)
    assert isinstance(admitted, events.JobAdmitted)


def test_a_run_that_outlasts_its_loan_gets_more_time_while_promises_allow_it() -> None:
    history, ended_s = saturated(61.0), NOW_S + 3.0 + LOAN_S
    planned(history, ended_s)
    assert shares(history)["u"] == 1
    assert history.state.lent_until_s == {"u": ended_s + LOAN_S}
    assert promises_hold(history, ended_s)


def test_no_run_gets_a_second_loan() -> None:
    history, ended_s = saturated(61.0), NOW_S + 3.0 + LOAN_S
    promised = {f"p{number}": 2 for number in range(4)}
    withdrawn = events.AllocationDecided(
        num_gpus_by_job=promised, valid_until_s=ended_s + 1.0, lent_until_s={"u": ended_s}, at_s=ended_s
    )
    history.then(withdrawn).decided(PLACEMENT, now_s=ended_s)
    planned(history, ended_s + 1.0)
    assert shares(history) == promised
    assert history.state.lent_until_s == {"u": ended_s}
    later_s = ended_s + COST_S
    planned(history.started("p3", at_s=later_s).finished("p0", at_s=later_s), later_s)
    assert shares(history)["u"] == 1, "a GPU is free"


def test_no_plan_uses_lent_gpus_before_the_job_is_measured() -> None:
    history, soon_s = saturated(60.0), NOW_S + 4.0
    assert profiling_loans(history.state, soon_s) == (ProfilingLoan(1, NOW_S + 3.0 + LOAN_S),)
    assert planned_pool(history.state, soon_s).plan.availability.free_B[0] == 0
    assert planned_pool(history.state, soon_s, loans=()).plan.availability.free_B[0] == 1
    assert profiling_loans(history.state, NOW_S + 3.0 + LOAN_S) == ()
    history.then(events.ProfileCompleted(profile_key="u/b64", iterations_per_s={1: 1.0}, at_s=soon_s))
    assert profiling_loans(history.state, soon_s) == ()


def test_a_lost_node_ends_a_loan_before_it_costs_a_promise() -> None:
    history = pool(4, 4, 1)
    history.decided(ADMISSION, *[submit(f"p{n}", deadline_s=NOW_S + 57.0) for n in range(4)])
    history.decided(ADMISSION, submit("u", model_name="u", deadline_s=NOW_S + 9_000.0))
    history.then(
        events.AllocationDecided(
            num_gpus_by_job={"p0": 2, "p1": 2, "p2": 2, "p3": 2, "u": 1},
            valid_until_s=None,
            lent_until_s={"u": NOW_S + 50.0},
            at_s=NOW_S,
        )
    )
    assert planned_pool(history.state, NOW_S).plan.num_needed == 9
    history.then(events.NodeLost(node_id="node-2", incarnation="first-2", reason="silent", at_s=NOW_S))
    alone = planned_pool(history.state, NOW_S)
    assert (alone.plan.late, alone.plan.num_needed) == ((), 8)


def test_a_loan_takes_no_gpu_of_a_job_that_would_start_over() -> None:
    history = pool(2)
    history.decided(ADMISSION, submit("script", training_function=f"train:{TORCHRUN}", deadline_s=NOW_S + 60.0))
    planned(history, NOW_S)
    assert shares(history) == {"script": 2}
    history.started("script", at_s=NOW_S + COST_S)
    job = history.state.live_jobs["script"]
    history.then(
        events.JobProgressed(
            job_id="script", generation=job.generation, iteration=2, iterations_per_s=2.0, at_s=NOW_S + 3.0
        )
    )
    unknown(history, "u")
    assert shares(history) == {"script": 2}


def test_a_late_job_keeps_its_gpus_beside_a_job_of_unknown_speed() -> None:
    """It would end later still, for a measurement that may last as long as it."""
    history = pool(8)
    history.decided(ADMISSION, submit("p", deadline_s=NOW_S + 60.0))
    planned(history, NOW_S)
    history.started("p", at_s=NOW_S + COST_S)
    planned(history, NOW_S + 70.0)
    assert planned_pool(history.state, NOW_S + 70.0).plan.late_jobs == ("p",)
    before = shares(history)
    history.decided(ADMISSION, submit("u", model_name="u", deadline_s=NOW_S + 9_000.0), now_s=NOW_S + 70.0)
    planned(history, NOW_S + 70.0)
    assert shares(history) == before


def test_a_job_of_unknown_speed_is_measured_on_gpus_that_a_late_job_cannot_use() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("p", max_gpus=2, deadline_s=NOW_S + 60.0))
    planned(history, NOW_S)
    history.started("p", at_s=NOW_S + COST_S)
    history.decided(ADMISSION, submit("u", model_name="u", deadline_s=NOW_S + 9_000.0), now_s=NOW_S + 70.0)
    planned(history, NOW_S + 70.0)
    assert planned_pool(history.state, NOW_S + 70.0).plan.late_jobs == ("p",)
    assert shares(history) == {"p": 2, "u": 1}
