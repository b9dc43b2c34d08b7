"""Given a pool of two GPU types, a job of unknown speed waits for no type that cannot measure it."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.history.event_text import event_text
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.admission.policy import decide
from elasticflow.services.admission.quote import quote
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.allocator.profiling import types_to_measure
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import ProfileJob, QuoteDeadline
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.jobs.scheduler_view import profile_known
from elasticflow.shared.state.gpu_types import failure_on_type, possible_types
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import spec_of
from testbed.histories import NOW_S, History, spec, submit
from tests.support.two_types import BOTH, SLOWER, due_in, two_types, type_of
from tests.support.worker_events import job, lost, throughput

UNKNOWN: dict[str, Any] = {"model_name": "unknown", "owner": "lab", **due_in(9_000.0)}
TOO_BIG = "OutOfMemoryError: one sample does not fit"


def planned(history: History, now_s: float = NOW_S) -> None:
    """Allocations until none changes, and all placements after each."""
    while history.decided(ALLOCATOR, now_s=now_s):
        while history.decided(PLACEMENT, now_s=now_s):
            pass


def requested(history: History, **changes: Any) -> History:
    """Job a of unknown speed, in its profiling run."""
    history.decided(ADMISSION, submit("a", **UNKNOWN | changes))
    planned(history)
    return history


def measured(history: History, rate: float, at_s: float) -> History:
    """All levels of the profiling run of job a on its present type; with each level its speed doubles."""
    on_type = spec_of(job(history))
    while not profile_known(history.state, on_type):
        history.then(throughput(job(history), rate * len(job(history).gpus), at_s))
        planned(history, at_s)
    return history


def failure(history: History, **changes: Any) -> events.ProfilingFailed:
    """What the executor reports where the profiling run of job a ends with an error, and another type is left."""
    failed = reported(history)
    assert isinstance(failed, events.ProfilingFailed)
    return replace(failed, **changes)


def reported(history: History) -> events.JobFailed | events.ProfilingFailed:
    failed = events.JobFailed(job_id="a", generation=job(history).generation, error=TOO_BIG, at_s=NOW_S + 5.0)
    return failure_on_type(history.state, job(history), type_of(history, "a"), failed)


def is_on_its_last_type(history: History) -> bool:
    return isinstance(reported(history), events.JobFailed)


def fails(history: History) -> History:
    history.then(failure(history))
    planned(history, NOW_S + 5.0)
    return history


def decision(history: History, now_s: float = NOW_S + 5.0) -> Any:
    (event,) = history.decided(ADMISSION, now_s=now_s)
    return event


# --- a run that fails on one type -----------------------------------------------------------------------


def test_a_run_that_fails_on_one_type_continues_on_the_other_which_gets_the_job() -> None:
    history = fails(requested(two_types()))
    assert (type_of(history, "a"), job(history).nodes, job(history).broken) == ("P100", ("node-1",), False)
    admitted = decision(measured(history, 1.0, NOW_S + 5.0))
    assert (type(admitted), admitted.gpu_type) == (events.JobAdmitted, "P100")


def test_a_run_that_fails_after_another_type_is_measured_leaves_the_decision_to_that_type() -> None:
    history = measured(requested(two_types()), 1.0, NOW_S + 2.0)
    assert type_of(history, "a") == "P100"
    fails(history)
    assert job(history).num_gpus == 0
    admitted = decision(history)
    assert (type(admitted), admitted.gpu_type) == (events.JobAdmitted, "")
    assert "admitted on V100 (it displaces the least there; not measured on P100)" in event_text(
        admitted, None, job(history), history.state
    )


def test_a_run_that_fails_on_the_last_type_fails_the_job_and_blames_no_type() -> None:
    history = fails(requested(two_types()))
    assert is_on_its_last_type(history)
    history.then(events.JobFailed(job_id="a", generation=job(history).generation, error=TOO_BIG, at_s=NOW_S + 6.0))
    assert history.state.ended_jobs["a"].phase is Phase.FAILED
    assert possible_types(history.state, spec(**UNKNOWN)) == ["", "P100"]


@pytest.mark.parametrize("named", ["V100", "P100"])
def test_a_run_on_the_only_type_that_the_user_accepts_fails_the_job(named: str) -> None:
    assert is_on_its_last_type(requested(two_types(), gpu_type=named))


def test_a_run_fails_the_job_if_the_other_type_has_too_few_gpus() -> None:
    assert is_on_its_last_type(requested(two_types(fast=4, slow=1), min_gpus=2))


def test_the_second_report_of_a_failed_run_changes_nothing() -> None:
    history = requested(two_types())
    failed = failure(history)
    after = history.then(failed).state
    assert history.then(failed).state.live_jobs == after.live_jobs
    assert possible_types(history.state, spec(**UNKNOWN)) == ["P100"]


def test_a_report_of_a_lost_executor_changes_nothing() -> None:
    history = requested(two_types())
    history.then(failure(history, node_id="node-0", incarnation="other"))
    assert possible_types(history.state, spec(**UNKNOWN)) == ["", "P100"]


def test_workers_that_fail_after_the_run_has_left_their_type_stop_no_other() -> None:
    history = measured(requested(two_types()), 1.0, NOW_S + 2.0)
    generation = job(history).stopping[0].generation
    history.then(failure(history, generation=generation, gpu_type="", node_id="node-0", incarnation="one"))
    assert possible_types(history.state, spec(**UNKNOWN)) == ["P100"]
    assert (job(history).nodes, job(history).broken) == (("node-1",), False)


def test_later_jobs_of_the_profile_do_not_try_the_type_again_and_a_rejection_says_why() -> None:
    history = fails(requested(two_types()))
    decision(measured(history, 1.0, NOW_S + 5.0))
    (rejected,) = history.decided(ADMISSION, submit("b", **UNKNOWN | due_in(10.0)), now_s=NOW_S + 6.0)
    assert rejected.explanation.startswith("on P100: 100 iterations in 4 s")
    assert rejected.explanation.endswith(f"; on V100 its profiling run failed: {TOO_BIG}")


def test_a_user_who_names_the_type_has_it_measured_again() -> None:
    history = fails(requested(two_types()))
    named: JobSpec = spec(**UNKNOWN | {"gpu_type": "V100"})
    answered = quote(history.state, QuoteDeadline(tenant="lab", spec=named), NOW_S)
    assert answered.explanation == (
        f"on V100 its profiling run failed: {TOO_BIG}; correct it and submit it, which measures it again"
    )
    (asked,) = history.decided(ADMISSION, submit("b", **UNKNOWN | {"gpu_type": "V100"}), now_s=NOW_S + 6.0)
    assert isinstance(asked, events.ProfileRequested)
    assert possible_types(history.state, named) == [""]
    planned(history, NOW_S + 7.0)
    assert history.state.live_jobs["b"].nodes == (), "first the run of a chooses the virtual nodes"
    history.then(throughput(job(history), 1.0, NOW_S + 8.0))
    planned(history, NOW_S + 60.0)
    assert history.state.live_jobs["b"].nodes == ("node-0",)


# --- a type that lends no GPU ---------------------------------------------------------------------------


def full(history: History, node: str, gpu_type: str) -> History:
    """Promises need all GPUs of a type, for all the time that they have."""
    is_fast = gpu_type == "V100"
    all_gpus = {"max_iterations": 368 if is_fast else 384, **due_in(100.0 if is_fast else 200.0)}
    (admitted,) = history.decided(ADMISSION, submit("full", gpu_type=gpu_type, min_gpus=4, **all_gpus))
    assert isinstance(admitted, events.JobAdmitted)
    planned(history)
    assert history.state.live_jobs["full"].nodes == (node,)
    return history


def test_a_job_is_decided_on_the_measured_type_if_the_other_can_lend_no_gpu() -> None:
    history = measured(requested(full(two_types(), "node-1", "P100")), 1.0, NOW_S + 2.0)
    admitted = decision(history)
    assert (type(admitted), admitted.gpu_type) == (events.JobAdmitted, "")


def test_a_job_is_measured_first_where_gpus_are_free() -> None:
    history = measured(requested(full(two_types(), "node-0", "V100")), 1.0, NOW_S + 2.0)
    admitted = decision(history)
    assert (type(admitted), admitted.gpu_type) == (events.JobAdmitted, "P100")


def test_no_run_moves_to_a_type_whose_whole_curve_is_known() -> None:
    """The ledger has no curve for the GPU range of the job there."""
    history = full(two_types(curves=BOTH | {"unknown/b64@P100": SLOWER}), "node-0", "V100")
    history.decided(ADMISSION, submit("a", **UNKNOWN, min_gpus=2))
    assert types_to_measure(history.state) == {}


def test_a_rejection_names_the_type_that_could_not_measure_the_job() -> None:
    history = requested(full(two_types(), "node-1", "P100"), **due_in(10.0))
    rejected = decision(measured(history, 1.0, NOW_S + 2.0))
    assert rejected.explanation.startswith("on V100: 100 iterations in ")
    assert rejected.explanation.endswith("; on P100 no GPU could be lent to measure its speed")


def test_a_later_job_of_the_profile_is_measured_on_the_other_type() -> None:
    history = measured(requested(full(two_types(), "node-1", "P100")), 1.0, NOW_S + 2.0)
    decision(history)
    history.finished("full", at_s=NOW_S + 6.0)
    planned(history, NOW_S + 6.0)
    (asked,) = history.decided(ADMISSION, submit("b", **UNKNOWN), now_s=NOW_S + 7.0)
    assert isinstance(asked, events.ProfileRequested)
    planned(history, NOW_S + 7.0)
    assert history.state.live_jobs["b"].nodes == ("node-1",)
    assert history.decided(ADMISSION, now_s=NOW_S + 8.0) == ()


def test_no_decision_is_made_before_the_allocator_knows_of_the_job() -> None:
    history = measured(requested(full(two_types(), "node-0", "V100")), 1.0, NOW_S + 2.0)
    decision(history)
    assert isinstance(history.decided(ADMISSION, submit("b", **UNKNOWN))[0], events.ProfileRequested)
    assert decide(history.state, (), NOW_S + 6.0) == ()
    planned(history, NOW_S + 6.0)
    assert isinstance(decision(history, NOW_S + 6.0), events.JobAdmitted)


def test_a_requested_profile_waits_for_all_types() -> None:
    history = full(two_types(), "node-1", "P100")
    history.decided(ADMISSION, ProfileJob(job_id="a", tenant="lab", spec=spec(**UNKNOWN)))
    planned(history)
    measured(history, 1.0, NOW_S + 2.0)
    assert history.decided(ADMISSION, now_s=NOW_S + 3.0) == ()
    history.finished("full", at_s=NOW_S + 6.0)
    planned(history, NOW_S + 6.0)
    assert isinstance(decision(measured(history, 0.5, NOW_S + 7.0)), events.JobProfiled)


def test_a_run_whose_node_is_lost_leaves_the_decision_to_the_measured_type() -> None:
    history = measured(requested(two_types()), 1.0, NOW_S + 2.0)
    history.then(lost("node-1", "two"))
    planned(history, NOW_S + 3.0)
    assert decision(history).gpu_type == ""


def test_one_type_chooses_the_virtual_nodes_before_another_one_measures() -> None:
    """Two jobs of one profile would measure both types at once, each with virtual nodes of its own."""
    history = two_types()
    requested(history)
    history.decided(ADMISSION, submit("b", **UNKNOWN), now_s=NOW_S + 30.0)
    planned(history, NOW_S + 30.0)
    held = {job_id for job_id, each in history.state.live_jobs.items() if each.num_gpus}
    assert len(held) == 1
    (first,) = held
    history.then(throughput(job(history, first), 1.0, NOW_S + 31.0))
    planned(history, NOW_S + 60.0)
    types = {type_of(history, job_id) for job_id, each in history.state.live_jobs.items() if each.num_gpus}
    assert len(types) == 2
