"""Given jobs that declare how long a start may take, promises count on it until one was measured."""

from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import ReserveQuote
from elasticflow.shared.scheduling.admission.planned_pool import MEASUREMENT_S, planned_pool
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from testbed.histories import NOW_S, History, pool, spec, submit

ALONE_S = 100.0 / 8  # of a job on all GPUs, without its start


def decided(history: History, job_id: str, deadline_in_s: float, **changes: Any) -> Any:
    (event,) = history.decided(ADMISSION, submit(job_id, deadline_s=NOW_S + deadline_in_s, **changes))
    return event


def planned(history: History, at_s: float = NOW_S) -> History:
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    return history


def test_a_promise_counts_on_a_declared_start_and_then_on_the_measured_one() -> None:
    too_early = decided(pool(8), "a", 80.0 + ALONE_S - 1.0, start_timeout_s=80.0)
    assert (type(too_early), too_early.reason) == (events.JobRejected, "deadline")
    history = pool(8)
    assert isinstance(decided(history, "a", 80.0 + ALONE_S + 1.0, start_timeout_s=80.0), events.JobAdmitted)
    planned(history).started("a", at_s=NOW_S + 10.0).finished("a", at_s=NOW_S + 30.0)
    assert isinstance(decided(history, "b", 10.0 + ALONE_S + 1.0, start_timeout_s=80.0), events.JobAdmitted)
    assert history.state.start_cost_s == 0.0, "jobs that declare nothing are planned as before"


def test_a_job_that_declares_a_short_start_is_planned_as_the_others() -> None:
    for deadline_in_s, kind in ((21.0 + ALONE_S, events.JobAdmitted), (19.0 + ALONE_S, events.JobRejected)):
        assert isinstance(decided(pool(8, resize_cost_s=20.0), "a", deadline_in_s, start_timeout_s=9.0), kind)


def test_a_job_beside_it_keeps_its_cheap_start() -> None:
    history = pool(8)
    decided(history, "slow", 1_000.0, start_timeout_s=300.0)
    assert isinstance(decided(history, "quick", 2.0 + ALONE_S + 1.0), events.JobAdmitted)


@pytest.mark.parametrize("name", ["start_timeout_s", "stall_timeout_s"])
def test_a_timeout_beyond_the_bounds_of_the_pool_is_rejected_with_them(name: str) -> None:
    history = pool(8, max_job_timeout_s=900.0)
    for value_s in (3.0, 1_000.0):
        event = decided(history, "a", 9_000.0, **{name: value_s})
        assert (type(event), event.reason) == (events.JobRejected, "invalid")
        assert event.explanation.startswith(f"{name}: must be 7.5 s, by which a lost node is known, to 900 s, max_job")
        asked = spec(deadline_s=None, **{name: value_s})
        reserve = ReserveQuote(job_id="a", tenant="lab", spec=asked, reserve_s=60.0)
        (event,) = history.decided(ADMISSION, reserve)
        assert (type(event), event.explanation.startswith(f"{name}: must be 7.5 s")) == (events.QuoteRejected, True)
    assert isinstance(decided(history, "b", 9_000.0, **{name: 900.0}), events.JobAdmitted)


def test_plans_that_are_kept_follow_what_is_learned_of_a_start() -> None:
    cache, history = PlanningCache(), pool(8)
    for job_id in ("a", "b"):
        decided(history, job_id, 1_000.0, start_timeout_s=300.0, max_gpus=4)
    planned(history)
    waits = []
    for _ in range(2):
        kept, anew = (planned_pool(history.state, NOW_S + 20.0, each) for each in (cache, PlanningCache()))
        assert kept.plan.table.job_ids == anew.plan.table.job_ids
        for name in ("stalled_until_J", "costs_JL"):
            known, fresh = (getattr(each.plan.table.jobs, name)[:2].tolist() for each in (kept, anew))
            assert known == fresh, name
        rows = {job.job_id: row for row, job in enumerate(kept.listed)}
        waits.append(float(kept.plan.table.jobs.stalled_until_J[rows["b"]]) - NOW_S)
        history.started("a", at_s=NOW_S + 20.0)
    assert waits == [300.0, 20.0], "both jobs have one profile"


def saturated(window_s: float, *, num_iterations: int = 100) -> History:
    """Four promised jobs on all eight GPUs, which take half as many seconds there and have so many."""
    history = pool(8)
    each: dict[str, Any] = {"deadline_s": NOW_S + window_s, "max_iterations": num_iterations}
    history.decided(ADMISSION, *[submit(f"p{n}", **each) for n in range(4)])
    return planned(history)


def test_promises_lend_gpus_to_a_long_start_only_if_they_hold_for_so_long() -> None:
    cases: tuple[tuple[dict[str, Any], bool], ...] = (({}, True), ({"start_timeout_s": 600.0}, False))
    for declared, is_lent in cases:
        history = saturated(60.0)
        history.decided(ADMISSION, submit("u", model_name="u", deadline_s=NOW_S + 9_000.0, **declared))
        planned(history)
        assert ("u" in history.state.num_gpus_by_job) is is_lent, declared


def test_a_loan_lasts_as_long_as_the_start_that_is_declared_and_no_longer_than_others_afterwards() -> None:
    history = saturated(5_700.0, num_iterations=10_000)  # without one GPU they would take 5,714 s
    command = submit("u", model_name="u", deadline_s=NOW_S + 9_000.0, start_timeout_s=600.0)
    history.decided(ADMISSION, command)
    planned(history)
    until_s = NOW_S + 600.0 + MEASUREMENT_S
    assert history.state.lent_until_s == {"u": until_s}
    planned(history, until_s - 1.0)
    assert history.state.lent_until_s == {"u": until_s}
    planned(history, until_s)
    assert history.state.lent_until_s == {"u": until_s + 2.0 + MEASUREMENT_S}, "as of a job with an usual start"
