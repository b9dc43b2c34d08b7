"""Given a job whose GPU type no longer suffices, admission moves it to another type where that keeps its promise."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.change_job import RETRY_S, WAIT_S
from elasticflow.services.admission.policy import POLICY, decide, wake_at_s
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.gpus import ShareSegment, segments
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool
from elasticflow.shared.state.gpu_types import part_of_type
from elasticflow.shared.state.job import Job, Phase
from elasticflow.simulator.verification.certificate_checker import Checker
from elasticflow.simulator.verification.certificates import (
    CertifiedJob,
    CertifiedPromise,
    Held,
    Level,
    PromiseCertificate,
)
from testbed.histories import LINEAR, NOW_S, History, best_effort, submit
from tests.support.two_types import SLOWER, answer, due_in, two_types, type_of
from tests.support.worker_events import joined, lost

SOON_S = NOW_S + 20.0


def at_risk(job_id: str = "a", *, deadline_s: float = 500.0) -> events.JobAtRisk:
    return events.JobAtRisk(
        job_id=job_id, generation=0, projected_finish_s=None, deadline_s=NOW_S + deadline_s, at_s=SOON_S
    )


def of_fast_type(*job_ids: str, seconds: float = 500.0, **changes: Any) -> History:
    """Jobs that are promised on V100, although the user leaves the type open, because P100 is full meanwhile."""
    history = two_types(**changes)
    fills = answer(history, submit("fills", gpu_type="P100", max_iterations=1980, **due_in(1000.0)))
    assert isinstance(fills, events.JobAdmitted)
    for job_id in job_ids:
        assert answer(history, submit(job_id, **due_in(seconds))).gpu_type == ""
    return history.then(events.JobCancelled(job_id="fills", reason="", at_s=NOW_S))


def without_fast_type(history: History, *job_ids: str) -> History:
    return history.then(lost("node-0", "one"), *(at_risk(job_id) for job_id in job_ids))


def with_job(history: History, job: Job) -> History:
    return History(replace(history.state, live_jobs=history.state.live_jobs.set(job.job_id, job)))


def schedule_of(job: Job) -> list[ShareSegment]:
    return list(segments(job.planned_share))


# --- promises -------------------------------------------------------------------------------------------


def test_a_promise_moves_to_the_type_that_keeps_it() -> None:
    history = without_fast_type(of_fast_type("a"), "a")
    changed = answer(history, now_s=SOON_S)
    assert isinstance(changed, events.GpuTypeChanged)
    assert (changed.gpu_type, changed.explanation) == ("P100", "the pool has 0 GPUs of type V100 now")
    job = history.state.live_jobs["a"]
    assert (type_of(history, "a"), job.deadline_s, job.at_risk) == ("P100", NOW_S + 500.0, False)
    assert job.planned_share == changed.minimum_satisfactory_share
    assert schedule_of(job)[-1].end_s <= NOW_S + 500.0
    assert decide(history.state, (), SOON_S) == ()


def test_a_promise_that_the_monitor_has_not_found_at_risk_stays() -> None:
    history = without_fast_type(of_fast_type("a"))
    assert decide(history.state, (), SOON_S) == ()


def test_only_the_work_that_is_left_is_planned_on_the_other_type() -> None:
    """In 50 s four P100 do 92 iterations."""
    history = of_fast_type("a", seconds=70.0)
    ahead = with_job(history, replace(history.state.live_jobs["a"], iteration=20))
    assert isinstance(answer(without_fast_type(ahead, "a"), now_s=SOON_S), events.GpuTypeChanged)
    late = without_fast_type(of_fast_type("a", seconds=70.0), "a")
    assert isinstance(answer(late, now_s=SOON_S), events.GpuTypeKept)


def test_a_promise_that_no_type_keeps_stays_and_says_why() -> None:
    history = without_fast_type(of_fast_type("a", seconds=60.0), "a")
    kept = answer(history, now_s=SOON_S)
    assert isinstance(kept, events.GpuTypeKept)
    assert kept.explanation == (
        "the pool has 0 GPUs of type V100 now; beside the promises on P100 it would end in 53 s at the earliest"
    )
    assert history.state.live_jobs["a"].at_risk


def test_an_independent_checker_finds_the_schedules_of_the_other_type_right() -> None:
    history = of_fast_type("a")
    answer(history, submit("there", gpu_type="P100", max_iterations=780, **due_in(450.0)))
    assert isinstance(answer(without_fast_type(history, "a"), now_s=SOON_S), events.GpuTypeChanged)
    promises = (promise(history, "there", 780.0), promise(history, "a", 100.0))
    certificate = PromiseCertificate(now_s=SOON_S, num_gpus=4, promises=promises, ended=())
    assert Checker().check_promises(certificate) == []


def promise(history: History, job_id: str, remaining_iterations: float) -> CertifiedPromise:
    """That of a job on P100 as an independent checker sees it."""
    job = history.state.live_jobs[job_id]
    assert job.deadline_s is not None
    levels = tuple(Level(num_gpus, rate, 2.0) for num_gpus, rate in SLOWER.items())
    certified = CertifiedJob(
        job_id=job_id, remaining_iterations=remaining_iterations, deadline_s=job.deadline_s, levels=levels
    )
    return CertifiedPromise(job=certified, schedule=tuple(map(Held._make, schedule_of(job))))


def test_the_reserve_of_the_other_type_serves_promises_that_move_there() -> None:
    """P100 has two nodes, one of them in reserve, and the promise of another job fills the other one."""
    history = two_types(reserve_nodes=1).then(joined("three", "node-2", num_gpus=4, gpu_type="P100"))
    filling = {"gpu_type": "P100", "max_iterations": 690, **due_in(380.0)}
    assert isinstance(answer(history, submit("there", **filling)), events.JobAdmitted)
    assert answer(history, submit("no-space", **filling)).reason == "deadline"
    assert answer(history, submit("a", **due_in(110.0))).gpu_type == ""
    changed = answer(without_fast_type(history, "a"), now_s=SOON_S)
    assert isinstance(changed, events.GpuTypeChanged)
    planned = planned_pool(part_of_type(history.state, "P100"), SOON_S)
    assert (planned.plan.late, planned.plan.num_gpus) == ((), 8)


def test_a_job_whose_user_named_the_type_stays_at_risk() -> None:
    history = two_types()
    answer(history, submit("a", gpu_type="V100", **due_in(500.0)))
    assert decide(without_fast_type(history, "a").state, (), SOON_S) == ()
    assert wake_at_s(history.state) is None


def test_a_job_of_unknown_speed_on_the_other_type_stays() -> None:
    history = two_types(curves={"linear/b64": LINEAR})
    answer(history, submit("a", gpu_type="V100", **due_in(500.0)))
    history = with_job(history, replace(history.state.live_jobs["a"], submitted_spec=None))
    kept = answer(without_fast_type(history, "a"), now_s=SOON_S)
    assert kept.explanation == (
        "the pool has 0 GPUs of type V100 now; its speed on P100 is unknown, which `eflow profile` measures"
    )


def test_a_promise_on_the_first_type_moves_when_its_node_comes_back_with_a_type_that_is_new_to_the_pool() -> None:
    history = of_fast_type("a").then(joined("again", "node-0", gpu_type="K80"), at_risk("a"))
    changed = answer(history, now_s=SOON_S)
    assert isinstance(changed, events.GpuTypeChanged)
    assert (changed.gpu_type, changed.explanation) == ("P100", "the pool has 0 GPUs of type V100 now")


def test_a_new_job_does_not_rest_on_the_curves_of_a_type_that_has_left() -> None:
    """The whole pool comes back with another type. Its speed is measured before anything is promised."""
    history = History().configured().then(joined("one", gpu_type="V100"))
    answer(history, submit("a", **due_in(500.0)))
    history.then(joined("again", gpu_type="K80"), at_risk("a"))
    assert isinstance(answer(history, now_s=SOON_S), events.GpuTypeKept)
    assert isinstance(answer(history, submit("b", **due_in(500.0)), now_s=SOON_S), events.ProfileRequested)


def test_of_several_jobs_those_that_no_longer_fit_move_first_and_the_others_stay() -> None:
    """Each of the jobs needs the GPUs of a node of V100 for 77 of 130 s, and one of two such nodes is lost."""
    history = two_types(fast=4, slow=8).then(joined("three", "node-2", num_gpus=4, gpu_type="V100"))
    fills = submit("fills", gpu_type="P100", max_iterations=3980, **due_in(1000.0))
    assert isinstance(answer(history, fills), events.JobAdmitted)
    for job_id in ("a", "b"):
        assert answer(history, submit(job_id, max_iterations=300, **due_in(130.0))).gpu_type == ""
    history.then(events.JobCancelled(job_id="fills", reason="", at_s=NOW_S), lost("node-2", "three"))
    history.then(at_risk("a", deadline_s=130.0), at_risk("b", deadline_s=130.0))
    decided = history.decided(POLICY, now_s=SOON_S)
    assert [type(event) for event in decided] == [events.GpuTypeChanged, events.GpuTypeKept]
    assert decided[1].explanation == "the GPUs of type V100 suffice for it"


# --- what has no promise --------------------------------------------------------------------------------


def test_a_job_without_a_promise_moves_when_its_type_has_been_away_for_a_while() -> None:
    history = two_types()
    assert answer(history, SubmitJob(job_id="a", tenant="lab", spec=best_effort())).gpu_type == ""
    history.then(lost("node-0", "one"))
    due_s = NOW_S + 9.0 + WAIT_S
    assert wake_at_s(history.state) == due_s
    assert decide(history.state, (), due_s - 1.0) == ()
    changed = answer(history, now_s=due_s)
    assert (changed.gpu_type, changed.minimum_satisfactory_share) == ("P100", ())


def test_a_broken_promise_moves_after_its_deadline() -> None:
    history = without_fast_type(of_fast_type("a", seconds=60.0), "a")
    assert isinstance(answer(history, now_s=SOON_S), events.GpuTypeKept)
    assert wake_at_s(history.state) == NOW_S + 9.0 + WAIT_S
    assert isinstance(answer(history, now_s=NOW_S + 9.0 + WAIT_S), events.GpuTypeChanged)


# --- again ----------------------------------------------------------------------------------------------


def test_a_job_that_stays_is_decided_again_only_when_something_has_happened() -> None:
    history = of_fast_type("a", seconds=400.0)
    fills = submit("fills-again", gpu_type="P100", max_iterations=1480, **due_in(750.0))
    assert isinstance(answer(history, fills), events.JobAdmitted)
    assert isinstance(answer(without_fast_type(history, "a"), now_s=SOON_S), events.GpuTypeKept)
    assert decide(history.state, (), SOON_S + RETRY_S) == ()
    history.then(events.JobCancelled(job_id="fills-again", reason="", at_s=SOON_S + 1.0))
    assert wake_at_s(history.state) is not None
    assert isinstance(answer(history, now_s=SOON_S + RETRY_S), events.GpuTypeChanged)


@pytest.mark.parametrize("returns", ["V100", "K80"])
def test_nothing_moves_back_by_itself(returns: str) -> None:
    history = without_fast_type(of_fast_type("a"), "a")
    answer(history, now_s=SOON_S)
    history.then(joined("again", "node-0", num_gpus=4, gpu_type=returns))
    assert decide(history.state, (), SOON_S + RETRY_S) == ()


def test_jobs_without_a_decision_stay() -> None:
    history = two_types()
    answer(history, submit("a", model_name="unknown"))
    history.then(lost("node-0", "one"))
    assert history.state.live_jobs["a"].phase is Phase.PROFILING
    assert decide(history.state, (), SOON_S) == ()
