"""A promise can be amended: beside all other promises, or the existing promise stays."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import AmendJob
from elasticflow.shared.messages.gpus import segments
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.state.idempotent_replies import outcome
from elasticflow.shared.state.job import Phase
from testbed.histories import NOW_S, History, best_effort, pool, spec, submit
from tests.unit.services.admission.test_reserve import hold


def amend(job_id: str = "a", tenant: str = "lab", **changes: Any) -> AmendJob:
    return AmendJob(job_id=job_id, tenant=tenant, **changes)


def amended(history: History, command: AmendJob, now_s: float = NOW_S) -> events.JobAmended:
    (answer,) = history.decided(POLICY, command, now_s=now_s)
    assert isinstance(answer, events.JobAmended), answer
    return answer


def rejected(history: History, command: AmendJob, now_s: float = NOW_S) -> events.AmendRejected:
    before = history.state.job(command.job_id)
    (answer,) = history.decided(POLICY, command, now_s=now_s)
    assert isinstance(answer, events.AmendRejected), answer
    assert history.state.job(command.job_id) is before, "the existing promise is unchanged"
    return answer


def promised(*num_gpus: int, deadline_s: float = NOW_S + 110.0, **config: Any) -> History:
    history = pool(*num_gpus, **config)
    history.decided(POLICY, submit("a", deadline_s=deadline_s))
    return history


def running(history: History, job_id: str = "a") -> History:
    history.decided(ALLOCATOR)
    history.decided(PLACEMENT)
    return history.started(job_id)


def test_an_earlier_deadline_is_promised_with_the_schedule_that_proves_it() -> None:
    history = promised(4, deadline_s=NOW_S + 400.0)
    answer = amended(history, amend(deadline_s=NOW_S + 60.0))
    steps = tuple(segments(answer.minimum_satisfactory_share))
    assert steps[-1].end_s <= NOW_S + 60.0
    job = history.state.live_jobs["a"]
    assert job.deadline_s == NOW_S + 60.0
    assert job.planned_share == answer.minimum_satisfactory_share
    assert job.spec == spec(deadline_s=NOW_S + 400.0), "a resubmission is recognised by its original spec"


def test_an_amendment_that_breaks_another_promise_is_rejected_with_an_offer_that_is_granted() -> None:
    history = promised(1, deadline_s=NOW_S + 400.0)
    history.decided(POLICY, submit("b", deadline_s=NOW_S + 110.0))
    answer = rejected(history, amend(deadline_s=NOW_S + 150.0))
    assert "existing promise is unchanged" in answer.explanation
    later, fewer = answer.offers
    assert (later.max_iterations, fewer.deadline_s) == (100, NOW_S + 150.0)
    rejected(history, amend(deadline_s=later.deadline_s - 1.0))
    rejected(history, amend(deadline_s=fewer.deadline_s, max_iterations=fewer.max_iterations + 2))
    amended(history, amend(deadline_s=later.deadline_s))


@pytest.mark.parametrize("admission", ["first-come", "selective"])
@pytest.mark.parametrize("iteration", [0, 30])
@pytest.mark.parametrize(
    "command",
    [
        amend(deadline_s=NOW_S + 60.0),
        amend(max_iterations=900),
        amend(deadline_s=NOW_S + 250.0, max_iterations=400),
        amend(deadline_s=NOW_S + 0.5),
    ],
)
def test_each_offer_is_granted_if_it_is_taken_at_once(command: AmendJob, iteration: int, admission: str) -> None:
    history = promised(1, deadline_s=NOW_S + 400.0, admission=admission)
    history.decided(POLICY, submit("b", deadline_s=NOW_S + 110.0))
    now_s = NOW_S
    if iteration:
        running(history, "b").finished("b", at_s=NOW_S + 102.0)
        history.decided(POLICY, submit("c", deadline_s=NOW_S + 370.0, max_iterations=60))
        running(history)
        now_s = NOW_S + 150.0
        command = replace(command, deadline_s=command.deadline_s and command.deadline_s + 150.0)
        history.then(
            events.JobProgressed(
                job_id="a",
                generation=history.state.live_jobs["a"].generation,
                iteration=iteration,
                iterations_per_s=1.0,
                at_s=now_s,
            )
        )
    offers = rejected(history, command, now_s).offers
    assert offers
    for offer in offers:
        at_once = History(history.state)
        amended(at_once, amend(deadline_s=offer.deadline_s, max_iterations=offer.max_iterations), now_s)


@pytest.mark.parametrize("max_iterations", [60, 100, 130, 170])
def test_under_first_come_admission_a_later_deadline_never_turns_a_grant_into_a_rejection(
    max_iterations: int,
) -> None:
    history = promised(4, deadline_s=NOW_S + 250.0, admission="first-come")
    for number, deadline_s in enumerate((90.0, 150.0, 200.0, 400.0, 600.0)):
        history.decided(POLICY, submit(f"other-{number}", deadline_s=NOW_S + deadline_s, max_iterations=150))
    running(history)
    granted = [
        isinstance(
            _answer(history, amend(deadline_s=NOW_S + due_s, max_iterations=max_iterations)),
            events.JobAmended,
        )
        for due_s in (5.0, 10.0, 20.0, 30.0, 40.0, 60.0, 90.0, 120.0, 180.0, 250.0, 300.0, 500.0, 900.0)
    ]
    assert granted == sorted(granted)
    assert set(granted) == {False, True}


def test_under_selective_admission_a_later_deadline_never_turns_a_grant_into_a_rejection() -> None:
    """Greedy filling in one order would grant a deadline between and reject later ones."""
    curves = {"odd/b64": {1: 1.0, 2: 1.8, 4: 1.7, 8: 3.5}, "hole/b64": {2: 3.0, 8: 6.0}}
    history = History().configured(resize_cost_s=10.0, admission="selective", curves=curves).nodes(4)
    for job_id, at_s, model_name, max_iterations, due_s in (
        ("a", 3, "linear", 10, 55),
        ("b", 5, "hole", 201, 108),
        ("c", 5, "odd", 111, 227),
        ("d", 7, "hole", 286, 215),
        ("e", 8, "hole", 368, 251),
        ("f", 21, "hole", 24, 214),
        ("g", 23, "hole", 147, 123),
        ("h", 39, "odd", 59, 334),
        ("i", 54, "hole", 140, 348),
    ):
        command = submit(job_id, model_name=model_name, max_iterations=max_iterations, deadline_s=NOW_S + due_s)
        history.decided(POLICY, command, now_s=NOW_S + at_s)
    granted = [
        isinstance(
            POLICY.decide(
                history.state,
                (amend("f", deadline_s=NOW_S + due_s, max_iterations=37),),
                NOW_S + 69.0,
            )[0],
            events.JobAmended,
        )
        for due_s in (74.0, 89.0, 164.0, 194.0, 209.0, 213.0, 215.0, 224.0, 264.0, 414.0, 1214.0)
    ]
    assert granted == sorted(granted)
    assert set(granted) == {False, True}


def _answer(history: History, command: AmendJob) -> events.PlanEvent:
    (answer,) = History(history.state).decided(POLICY, command, now_s=NOW_S + 1.0)
    return answer


def test_no_offer_has_fewer_iterations_than_are_done_or_exceeds_the_quota() -> None:
    history = running(promised(1, deadline_s=NOW_S + 400.0))
    (hasty,) = rejected(history, amend(deadline_s=NOW_S + 91.0), now_s=NOW_S + 90.0).offers
    assert hasty.max_iterations == 100, "only a later deadline: 88 are done, and a stop takes two seconds"
    quota = TenantQuota(max_gpu_hours_per_day=250.0 / 3600.0)
    poor = promised(1, deadline_s=NOW_S + 900.0, quotas={"lab": quota})
    assert rejected(poor, amend(max_iterations=2_000)).offers == ()


def test_gpus_that_an_amendment_frees_are_promised_to_other_jobs() -> None:
    history = promised(1)
    (rejected,) = history.decided(POLICY, submit("b", deadline_s=NOW_S + 110.0))
    assert isinstance(rejected, events.JobRejected)
    amended(history, amend(deadline_s=NOW_S + 230.0))
    (admitted,) = history.decided(POLICY, submit("c", deadline_s=NOW_S + 110.0))
    assert isinstance(admitted, events.JobAdmitted)


@pytest.mark.parametrize(("in_s", "said"), [(0.2, "in 0.2 s"), (1.0, "in 1 s"), (9.6, "in 10 s")])
def test_the_time_that_is_left_is_told_as_the_user_gave_it(in_s: float, said: str) -> None:
    """The planned deadline is earlier by the slack of the pool: no user has asked for that one."""
    history = promised(1, deadline_s=NOW_S + 400.0, deadline_slack_s=2.0)
    answer = rejected(history, amend(deadline_s=NOW_S + in_s))
    assert answer.explanation.startswith(f"100 more iterations {said} cannot be kept"), answer.explanation


def test_an_amendment_keeps_quote_reservations() -> None:
    history = promised(1, deadline_s=NOW_S + 400.0)
    history.decided(POLICY, hold("quote", 120.0))
    (quote,) = history.state.quote_reservations.values()
    more = rejected(history, amend(deadline_s=quote.deadline_s, max_iterations=200))
    assert "cannot be kept beside" in more.explanation


def test_an_amendment_of_a_waiting_job_starts_no_worker() -> None:
    history = promised(1, deadline_s=NOW_S + 400.0)
    answer = amended(history, amend(max_iterations=300))
    assert answer.gpu_seconds == pytest.approx(200.0, abs=1.0)
    job = history.state.live_jobs["a"]
    assert job.spec is not None
    assert job.spec.max_iterations == 300
    assert not job.has_outdated_spec
    assert history.decided(POLICY, submit("a", deadline_s=NOW_S + 400.0)) == (), "repeated before, not a duplicate"
    reported = outcome(history.state, job)
    assert isinstance(reported, events.JobAdmitted)
    assert reported.spec.max_iterations == 100


def test_training_workers_get_an_amended_number_of_iterations_in_a_new_generation() -> None:
    history = running(promised(1, deadline_s=NOW_S + 400.0))
    amended(history, amend(max_iterations=200), now_s=NOW_S + 10.0)
    before = history.state.live_jobs["a"]
    assert before.has_outdated_spec
    history.decided(ALLOCATOR, now_s=NOW_S + 10.0)
    (placed,) = history.decided(PLACEMENT, now_s=NOW_S + 10.0)
    assert isinstance(placed, events.PlacementDecided)
    after = history.state.live_jobs["a"]
    assert (after.generation, after.gpus) == (before.generation + 1, before.gpus)
    assert [s.generation for s in after.stopping] == [before.generation]
    assert not after.has_outdated_spec


def test_an_amended_deadline_disturbs_no_worker() -> None:
    history = running(promised(1, deadline_s=NOW_S + 400.0))
    amended(history, amend(deadline_s=NOW_S + 300.0), now_s=NOW_S + 10.0)
    history.decided(ALLOCATOR, now_s=NOW_S + 10.0)
    assert history.decided(PLACEMENT, now_s=NOW_S + 10.0) == ()


def test_an_older_generation_that_finishes_does_not_end_a_job_amended_to_more_iterations() -> None:
    history = running(promised(1, deadline_s=NOW_S + 400.0))
    amended(history, amend(max_iterations=200), now_s=NOW_S + 99.0)
    history.finished("a", at_s=NOW_S + 100.0)  # at iteration 100, as its generation was assigned
    assert history.state.live_jobs["a"].phase is Phase.ADMITTED
    history.then(
        events.JobFinished(
            job_id="a",
            generation=history.state.live_jobs["a"].generation,
            iteration=200,
            condition="max_iterations",
            at_s=NOW_S + 300.0,
        )
    )
    assert history.state.ended_jobs["a"].phase is Phase.FINISHED


def test_new_iterations_are_charged_a_resize() -> None:
    history = running(promised(1, deadline_s=NOW_S + 104.0))
    rejected(history, amend(max_iterations=102), now_s=NOW_S + 0.5)
    amended(history, amend(max_iterations=101), now_s=NOW_S + 0.5)


def test_other_classes_are_amended_without_a_promise() -> None:
    history = pool(1)
    history.decided(POLICY, submit("a", job_class=JobClass.SOFT))
    assert amended(history, amend(deadline_s=NOW_S + 5.0)).minimum_satisfactory_share == ()
    free = best_effort()
    history.decided(POLICY, submit("b", **{name: getattr(free, name) for name in ("job_class", "deadline_s")}))
    assert "has none" in rejected(history, amend("b", deadline_s=NOW_S + 5.0)).explanation
    assert amended(history, amend("b", max_iterations=7)).max_iterations == 7


def test_a_rejected_amendment_is_explained_in_a_sentence() -> None:
    history = promised(1)
    history.decided(POLICY, submit("new", model_name="new"))
    assert "no such job" in rejected(history, amend("unknown", max_iterations=1)).explanation
    assert "no such job" in rejected(history, amend(tenant="thief", max_iterations=1)).explanation
    assert "one of them" in rejected(history, amend()).explanation
    assert "in the past" in rejected(history, amend(deadline_s=NOW_S - 3.0)).explanation
    assert "being measured" in rejected(history, amend("new", max_iterations=1)).explanation
    running(history)
    history.finished("a", at_s=NOW_S + 50.0)
    assert "has ended already: finished" in rejected(history, amend(deadline_s=NOW_S + 500.0)).explanation


def test_the_quota_counts_added_gpu_seconds_and_no_new_job() -> None:
    quota = TenantQuota(max_jobs_per_day=1, max_gpu_hours_per_day=250.0 / 3600.0)
    history = promised(1, deadline_s=NOW_S + 900.0, quotas={"lab": quota})
    amended(history, amend(max_iterations=200))
    (used,) = history.state.usage["lab"]
    assert used.num_jobs == 1
    assert used.gpu_seconds == pytest.approx(202.0, abs=1.0)
    assert "GPU-hours a day are used" in rejected(history, amend(max_iterations=300)).explanation
