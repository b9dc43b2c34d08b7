"""Given this history, when this command comes, then admission decides this."""

import itertools
from dataclasses import replace
from typing import Any, Never

import pytest

from elasticflow.services.admission.policy import POLICY, wake_at_s
from elasticflow.services.admission.quote import quote
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import CancelJob, QuoteDeadline, ReserveQuote
from elasticflow.shared.messages.gpus import segments
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.scheduling.admission.admission_search import FillingTrials
from elasticflow.shared.state.idempotent_replies import outcome
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import Demand
from testbed.histories import LINEAR, NOW_S, History, pool, spec, submit


def only(said: tuple[object, ...]) -> object:
    assert len(said) == 1, said
    return said[0]


def test_a_job_that_fits_is_admitted_with_the_schedule_that_proves_it() -> None:
    history = pool(4)
    admitted = only(history.decided(POLICY, submit("a")))
    assert isinstance(admitted, events.JobAdmitted)
    steps = tuple(segments(admitted.minimum_satisfactory_share))
    assert sum(LINEAR[s.num_gpus] * (s.end_s - s.start_s) for s in steps) >= 100.0
    assert steps[-1].end_s <= NOW_S + 100.0
    assert admitted.gpu_seconds == pytest.approx(sum(s.num_gpus * (s.end_s - s.start_s) for s in steps))


def test_a_job_that_does_not_fit_is_rejected_with_the_earliest_deadline_and_that_one_is_accepted() -> None:
    history = pool(1)
    history.decided(POLICY, submit("a", deadline_s=NOW_S + 110.0))
    rejected = only(history.decided(POLICY, submit("b", deadline_s=NOW_S + 110.0)))
    assert isinstance(rejected, events.JobRejected)
    assert rejected.reason == "deadline"
    assert "100 iterations in 110 s" in rejected.explanation
    assert rejected.earliest_deadline_s is not None
    too_early = only(pool_with_a().decided(POLICY, submit("b", deadline_s=rejected.earliest_deadline_s - 1.0)))
    assert isinstance(too_early, events.JobRejected)
    accepted = only(pool_with_a().decided(POLICY, submit("b", deadline_s=rejected.earliest_deadline_s)))
    assert isinstance(accepted, events.JobAdmitted)


def test_a_deadline_that_is_nearer_than_the_slack_of_the_pool_leaves_no_time() -> None:
    rejected = only(pool(1, deadline_slack_s=1.0).decided(POLICY, submit("a", deadline_s=NOW_S + 0.5)))
    assert isinstance(rejected, events.JobRejected)
    assert "iterations do not fit, for no time is left: alone on" in rejected.explanation


@pytest.mark.parametrize("admission", ["first-come", "selective"])
def test_a_rejection_seeks_no_other_deadline_for_a_sender_who_does_not_wait(
    admission: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = pool_with_a(admission=admission)
    command = replace(submit("b", deadline_s=NOW_S + 110.0), sender_waits=False)
    monkeypatch.setattr(AdmissionSession, "earliest_deadline_s", lambda *_, **__: pytest.fail("it was sought"))
    rejected = only(history.decided(POLICY, command))
    assert isinstance(rejected, events.JobRejected)
    assert rejected.reason == "deadline"
    assert (rejected.earliest_deadline_s, rejected.offers) == (None, ())
    assert "100 iterations in 110 s do not fit" in rejected.explanation
    assert "the sender does not wait; `eflow quote` finds the earliest" in rejected.explanation


def test_fewer_iterations_are_offered_only_if_they_end_sooner() -> None:
    command = submit("b", deadline_s=NOW_S + 1.0, max_iterations=9)  # one third and two thirds end in the same second
    rejected = only(pool(8).decided(POLICY, command))
    assert isinstance(rejected, events.JobRejected)
    by_size = sorted({(offer.max_iterations, offer.deadline_s) for offer in rejected.offers})
    assert all(a[1] < b[1] for a, b in itertools.pairwise(by_size) if a[0] < b[0]), by_size


@pytest.mark.parametrize("admission", ["first-come", "selective"])
def test_offers_count_iterations_that_fit_if_other_jobs_move(admission: str) -> None:
    history = pool(1, admission=admission)
    history.decided(POLICY, submit("patient", deadline_s=NOW_S + 400.0))
    before = history.state
    rejected = only(history.decided(POLICY, submit("b", deadline_s=NOW_S + 110.0, max_iterations=200)))
    assert isinstance(rejected, events.JobRejected)
    by_then = [offer for offer in rejected.offers if offer.deadline_s == NOW_S + 110.0]
    assert [offer.max_iterations > 105 for offer in by_then] == [True], "around `patient` ten fit"
    shorter = submit("b", deadline_s=NOW_S + 110.0, max_iterations=by_then[0].max_iterations)
    assert isinstance(only(History(before).decided(POLICY, shorter)), events.JobAdmitted)


def test_no_search_is_made_for_more_iterations_than_a_job_could_do_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unexpected(*_: object) -> Never:
        raise AssertionError("for each refusal a search: others win the race for the next decision meanwhile")

    history = pool(2 * max(LINEAR))
    history.decided(POLICY, submit("patient", deadline_s=NOW_S + 400.0))
    monkeypatch.setattr(FillingTrials, "fill", unexpected)
    rejected = only(history.decided(POLICY, submit("b", deadline_s=NOW_S + 10.0, max_iterations=10**6)))
    assert isinstance(rejected, events.JobRejected)
    by_then = [o.max_iterations for o in rejected.offers if o.deadline_s == NOW_S + 10.0]
    assert [iterations > 60 for iterations in by_then] == [True], "8/s, but for the stop at the start"


def pool_with_a(**config: Any) -> History:
    history = pool(1, **config)
    history.decided(POLICY, submit("a", deadline_s=NOW_S + 110.0))
    return history


def test_one_decision_never_promises_the_same_capacity_twice() -> None:
    history = pool(1)
    said = history.decided(POLICY, submit("a", deadline_s=NOW_S + 110.0), submit("b", deadline_s=NOW_S + 110.0))
    assert [type(event) for event in said] == [events.JobAdmitted, events.JobRejected]


def test_every_offer_of_many_rejections_is_granted_and_the_first_one_is_tight() -> None:
    later = submit("b", deadline_s=NOW_S + 300.0, max_iterations=20)  # may move for a more urgent job
    urgent = [submit(job_id, deadline_s=NOW_S + 110.0, max_iterations=40) for job_id in ("c", "d")]
    history = pool_with_a()
    assert isinstance(only(history.decided(POLICY, later)), events.JobAdmitted)
    before = history.state
    said = history.decided(POLICY, *urgent)
    offers = [event.earliest_deadline_s for event in said if isinstance(event, events.JobRejected)]
    assert len(offers) == 2
    assert offers[0] is not None
    assert offers[1] is not None
    assert offers[0] < offers[1], "the second one would not move b"
    for command, offer in zip(urgent, offers, strict=True):
        taken = only(History(before).decided(POLICY, submit(command.job_id, deadline_s=offer, max_iterations=40)))
        assert isinstance(taken, events.JobAdmitted)


def test_a_job_that_asks_no_less_than_a_rejected_one_is_rejected_without_a_search() -> None:
    said = pool_with_a(admission="first-come").decided(
        POLICY,
        submit("b", deadline_s=NOW_S + 110.0, max_iterations=40),
        submit("c", deadline_s=NOW_S + 105.0, max_iterations=50),
        submit("d", deadline_s=NOW_S + 109.0, max_iterations=1),
    )
    assert [type(event) for event in said] == [events.JobRejected, events.JobRejected, events.JobAdmitted]


def test_every_bad_field_is_named_in_one_answer() -> None:
    command = submit("a", deadline_s=NOW_S - 5.0, deadline_in_s=3.0)
    rejected = only(pool(8).decided(POLICY, command))
    assert isinstance(rejected, events.JobRejected)
    assert rejected.reason == "invalid"
    assert "give one of them" in rejected.explanation
    past = only(pool(1).decided(POLICY, submit("a", deadline_s=NOW_S - 5.0)))
    assert isinstance(past, events.JobRejected)
    assert "5 s in the past" in past.explanation


def test_an_slo_job_needs_a_deadline() -> None:
    rejected = only(pool(1).decided(POLICY, submit("a", deadline_s=None)))
    assert isinstance(rejected, events.JobRejected)
    assert "choose best_effort" in rejected.explanation


def test_a_resubmission_has_no_effect_and_another_spec_under_its_id_is_rejected() -> None:
    history = pool(2)
    history.decided(POLICY, submit("a"))
    assert history.decided(POLICY, submit("a")) == ()
    refused = only(history.decided(POLICY, submit("a", max_iterations=7)))
    assert isinstance(refused, events.JobRejected)
    assert refused.reason == "duplicate"
    assert history.state.live_jobs["a"].phase is Phase.ADMITTED


def test_an_unknown_model_is_profiled_first_and_decided_when_its_curve_is_known() -> None:
    history = pool(4)
    command = submit("a", model_name="new")
    assert isinstance(only(history.decided(POLICY, command)), events.ProfileRequested)
    assert history.decided(POLICY) == ()
    history.then(events.ProfileCompleted(profile_key="new/b64", iterations_per_s={1: 2.0}, at_s=NOW_S))
    assert isinstance(only(history.decided(POLICY)), events.JobAdmitted)


def test_a_deadline_that_passes_during_the_profile_is_a_rejection_and_wakes_the_service() -> None:
    history = pool(4)
    history.decided(POLICY, submit("a", model_name="new"))
    assert wake_at_s(history.state) == NOW_S + 100.0
    rejected = only(history.decided(POLICY, now_s=NOW_S + 100.0))
    assert isinstance(rejected, events.JobRejected)
    assert wake_at_s(history.state) is None


def test_a_batch_larger_than_the_data_set_is_named_with_both_numbers() -> None:
    history = pool(4)
    history.decided(POLICY, submit("a", model_name="new"))
    history.then(
        events.ThroughputMeasured(
            profile_key="new/b64",
            num_gpus=1,
            iterations_per_s=1.0,
            dataset_size=50,
            job_id="a",
            generation=1,
            source="profile",
            at_s=NOW_S,
        ),
        events.ProfileCompleted(profile_key="new/b64", iterations_per_s={1: 1.0}, at_s=NOW_S),
    )
    rejected = only(history.decided(POLICY))
    assert isinstance(rejected, events.JobRejected)
    assert "64 is more than the data set's 50 samples" in rejected.explanation


def test_a_quota_is_a_separate_reason() -> None:
    history = pool(8, quotas={"lab": TenantQuota(max_jobs_per_day=1)})
    first, second = history.decided(POLICY, submit("a"), submit("b"))
    assert isinstance(first, events.JobAdmitted)
    assert isinstance(second, events.JobRejected)
    assert second.reason == "quota"
    other_tenant = only(history.decided(POLICY, submit("c", tenant="other")))
    assert isinstance(other_tenant, events.JobAdmitted)


def test_a_job_under_profiling_counts_for_the_quota_but_not_against_itself() -> None:
    history = pool(8, quotas={"lab": TenantQuota(max_jobs_per_day=1)})
    first, second = history.decided(POLICY, submit("a", model_name="new"), submit("b", model_name="newer"))
    assert isinstance(first, events.ProfileRequested)
    assert isinstance(second, events.JobRejected)
    assert second.reason == "quota"
    history.then(events.ProfileCompleted(profile_key="new/b64", iterations_per_s={1: 2.0}, at_s=NOW_S))
    assert isinstance(only(history.decided(POLICY)), events.JobAdmitted)


@pytest.mark.parametrize("slack_s", [0.0, 0.3, 1.3, 2.0])
def test_an_offer_is_accepted_with_any_slack(slack_s: float) -> None:
    history = pool(4, deadline_slack_s=slack_s)
    history.decided(POLICY, *(submit(f"j{n}", deadline_s=NOW_S + 60.0 + 7.3 * n) for n in range(8)))
    rejected = history.decided(POLICY, submit("late", deadline_s=NOW_S + 10.0))[0]
    assert isinstance(rejected, events.JobRejected)
    taken = only(history.decided(POLICY, submit("offer", deadline_s=rejected.earliest_deadline_s)))
    assert isinstance(taken, events.JobAdmitted)


def test_best_effort_is_admitted_beside_any_promise() -> None:
    history = pool(1)
    history.decided(POLICY, submit("a", deadline_s=NOW_S + 103.0))
    said = history.decided(POLICY, submit("b", job_class=JobClass.BEST_EFFORT, deadline_s=None))
    assert isinstance(only(said), events.JobAdmitted)


def test_cancel_ends_a_live_job_once_and_gives_its_capacity_back() -> None:
    history = pool(1)
    history.decided(POLICY, submit("a", deadline_s=NOW_S + 110.0))
    cancelled, admitted = history.decided(
        POLICY, CancelJob(job_id="a", tenant="lab"), submit("b", deadline_s=NOW_S + 110.0)
    )
    assert isinstance(cancelled, events.JobCancelled)
    assert isinstance(admitted, events.JobAdmitted)
    assert (
        history.decided(POLICY, CancelJob(job_id="a", tenant="lab")) == ()
    )  # the reply is repeated, not decided again
    history.then(events.PlacementDecided(placements=(), at_s=NOW_S)).finished("b", at_s=NOW_S + 50)
    refused = only(history.decided(POLICY, CancelJob(job_id="b", tenant="lab")))
    assert isinstance(refused, events.CancelRejected)
    assert "finished" in refused.explanation


def test_another_tenant_cannot_cancel() -> None:
    history = pool(2)
    assert isinstance(only(history.decided(POLICY, submit("a"))), events.JobAdmitted)
    refused = only(history.decided(POLICY, CancelJob(job_id="a", tenant="thief")))
    assert isinstance(refused, events.CancelRejected)
    assert "no such job" in refused.explanation


def test_a_quote_is_what_would_be_admitted_at_once() -> None:
    history = pool(2)
    history.decided(POLICY, submit("a"))
    question = QuoteDeadline(tenant="lab", spec=spec(deadline_s=None))
    answer = quote(history.state, question, NOW_S)
    assert answer.earliest_deadline_s is not None
    taken = only(history.decided(POLICY, submit("b", deadline_s=answer.earliest_deadline_s)))
    assert isinstance(taken, events.JobAdmitted)
    assert taken.gpu_seconds == pytest.approx(answer.gpu_seconds)
    assert answer.schedule == taken.minimum_satisfactory_share


def test_without_gpus_a_submission_waits_for_the_first_node() -> None:
    history = History().configured()
    undecided = only(history.decided(POLICY, submit("a"), now_s=NOW_S))
    assert isinstance(undecided, events.ProfileRequested)
    assert undecided.waits_for == "gpus"
    assert outcome(history.state, history.state.live_jobs["a"]) == undecided  # the reply to a resubmission
    assert history.decided(POLICY, now_s=NOW_S + 1.0) == ()
    history.nodes(4)
    assert isinstance(only(history.decided(POLICY, now_s=NOW_S + 2.0)), events.JobAdmitted)


def test_a_profiled_job_is_not_rejected_while_the_last_node_restarts() -> None:
    """Its profiling run has seen one GPU when all are gone: neither is the profile at its end, nor the answer no."""
    history = pool(4)
    history.decided(POLICY, submit("a", model_name="new"), now_s=NOW_S)
    history.then(
        events.ThroughputMeasured(
            job_id="a",
            generation=1,
            profile_key="new/b64",
            num_gpus=1,
            iterations_per_s=1.0,
            source="profile",
            at_s=NOW_S,
        )
    )
    left = events.NodeLost(node_id="node-0", incarnation="first-0", reason="silent", at_s=NOW_S)
    history.then(left)
    assert history.state.num_gpus == 0
    said = history.decided(ALLOCATOR, now_s=NOW_S + 1.0)
    assert not any(isinstance(event, events.ProfileCompleted) for event in said)
    assert history.decided(POLICY, now_s=NOW_S + 1.0) == ()
    assert "a" in history.state.live_jobs


def test_a_submission_waits_for_gpus_until_its_deadline_at_most() -> None:
    history = History().configured()
    history.decided(POLICY, submit("a", deadline_s=NOW_S + 60.0), now_s=NOW_S)
    assert wake_at_s(history.state) == NOW_S + 60.0
    rejected = only(history.decided(POLICY, now_s=NOW_S + 60.0))
    assert isinstance(rejected, events.JobRejected)
    assert (rejected.reason, rejected.explanation) == (
        "unrunnable",
        "its deadline passed before a node joined the pool",
    )


def test_without_gpus_no_deadline_is_quoted_and_the_reason_says_so() -> None:
    answer = quote(History().configured().state, QuoteDeadline(tenant="lab", spec=spec(deadline_s=None)), NOW_S)
    assert answer.earliest_deadline_s is None
    assert answer.explanation == "the pool has no GPUs now"


def test_a_rejected_name_may_be_used_again_for_another_job() -> None:
    history = pool(1, admission="first-come")
    first = only(history.decided(POLICY, submit("a", max_iterations=1_000)))
    assert isinstance(first, events.JobRejected)
    assert history.decided(POLICY, submit("a", max_iterations=1_000)) == ()  # the host repeats the answer
    second = only(history.decided(POLICY, submit("a", max_iterations=90)))
    assert isinstance(second, events.JobAdmitted)
    third = only(history.decided(POLICY, submit("a", max_iterations=1_000)))
    assert isinstance(third, events.JobRejected)
    assert third.reason == "duplicate"  # it names a live job


def test_a_relative_deadline_counts_from_the_first_decision_and_includes_the_profiling_run() -> None:
    history = pool(4, admission="first-come")
    command = submit("a", model_name="unknown", deadline_s=None, deadline_in_s=500.0)
    asked = only(history.decided(POLICY, command, now_s=NOW_S + 10.0))
    assert isinstance(asked, events.ProfileRequested)
    assert asked.deadline_s == NOW_S + 510.0
    history.then(events.ProfileCompleted(profile_key="unknown/b64", iterations_per_s=LINEAR, at_s=NOW_S))
    admitted = only(history.decided(POLICY, now_s=NOW_S + 70.0))
    assert isinstance(admitted, events.JobAdmitted)
    assert admitted.deadline_s == NOW_S + 510.0


def why_none(history: History, **changes: Any) -> str:
    """Why no deadline is quoted, which a rejection and a reservation must say as well."""
    question = spec(deadline_s=None, **changes)
    answer = quote(history.state, QuoteDeadline(tenant="lab", spec=question), NOW_S)
    assert answer.earliest_deadline_s is None
    rejected = only(history.decided(POLICY, submit("a", deadline_s=NOW_S + 3_600.0, **changes)))
    assert isinstance(rejected, events.JobRejected)
    assert rejected.reason == "deadline"
    assert answer.explanation in rejected.explanation
    assert "promises already made" not in rejected.explanation, "there are none"
    reserved = only(history.decided(POLICY, ReserveQuote(job_id="q", tenant="lab", spec=question, reserve_s=60.0)))
    assert isinstance(reserved, events.QuoteRejected)
    assert reserved.explanation == answer.explanation
    return answer.explanation


IN_RESERVE = "the others are kept in reserve for failures (reserve_nodes)"


@pytest.mark.parametrize("admission", ["first-come", "selective"])
@pytest.mark.parametrize(
    ("nodes", "least", "why"),
    [
        ((4,), 1, "needs at least 1 GPU, and 0 can be promised, {}; submit it without a deadline, or add a node"),
        ((2, 2), 4, "needs at least 4 GPUs, and 2 can be promised, {}; allow it 2 GPUs (--gpus), submit it without"),
        ((2, 2, 2, 2), 8, "needs at least 8 GPUs, and 6 can be promised, {}; allow it 4 GPUs (--gpus), submit it"),
    ],
)
def test_the_reserve_for_failures_is_named_where_it_prevents_every_deadline(
    admission: str, nodes: tuple[int, ...], least: int, why: str
) -> None:
    history = pool(*nodes, reserve_nodes=1, admission=admission)
    assert why.format(IN_RESERVE) in why_none(history, min_gpus=least)


def test_the_reserve_is_named_where_recent_demand_would_fill_the_pool_otherwise() -> None:
    """A job that cannot be promised displaces no others, so it is not too expensive either."""
    demand = Demand(since_s=NOW_S - 86_400.0)
    for number in range(500, 0, -1):
        demand = demand.added(NOW_S - 10.0 * number, 100.0, 600.0)
    history = History(replace(pool(2, 2, 2, 2, reserve_nodes=1, admission="selective").state, demand=demand))
    long: dict[str, Any] = {"max_iterations": 10_000, "deadline_s": NOW_S + 3_600.0}
    narrow = only(history.decided(POLICY, submit("narrow", **long)))
    assert isinstance(narrow, events.JobRejected)
    assert narrow.reason == "price"
    wide = only(history.decided(POLICY, submit("wide", min_gpus=8, **long)))
    assert isinstance(wide, events.JobRejected)
    assert wide.reason == "deadline"
    assert f"needs at least 8 GPUs, and 6 can be promised, {IN_RESERVE}" in wide.explanation


@pytest.mark.parametrize("reserve_nodes", [0, 1])
def test_the_reserve_is_named_where_it_makes_a_job_slower(reserve_nodes: int) -> None:
    rejected = only(pool(2, 2, reserve_nodes=reserve_nodes).decided(POLICY, submit("a", deadline_s=NOW_S + 9.0)))
    assert isinstance(rejected, events.JobRejected)
    named = f"; 2 of the 4 GPUs can be promised, {IN_RESERVE}" if reserve_nodes else ""
    assert f"(4/s){named}; a deadline in" in rejected.explanation


def test_promises_are_named_only_where_there_are_some() -> None:
    rejected = only(pool_with_a().decided(POLICY, submit("b", deadline_s=NOW_S + 110.0)))
    assert isinstance(rejected, events.JobRejected)
    assert "; beside the promises already made a deadline in" in rejected.explanation


def test_the_announced_ends_of_nodes_are_named_where_they_prevent_every_deadline() -> None:
    history = pool(2, 2)
    history.then(events.NodeEndAnnounced(node_id="node-1", incarnation="first-1", until_s=NOW_S + 600.0, at_s=NOW_S))
    assert why_none(history, min_gpus=4, max_iterations=30_000) == (
        "no deadline is possible on 4 GPUs: it needs at least 4 GPUs, and 2 can be promised beyond the announced "
        "ends of nodes (node-1 in 600 s); allow it 2 GPUs (--gpus), submit it without a deadline, or add a node"
    )


def test_a_reserve_that_covers_no_stop_is_named() -> None:
    why = why_none(pool(2, 2, reserve_nodes=1, resize_cost_s=600.0, heartbeat_timeout_s=5.0))
    assert "a stop takes 605 s, and the reserve for failures (reserve_nodes) covers stops of less than 600 s" in why
