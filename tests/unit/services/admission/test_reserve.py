"""A quote reservation is kept like a promise until it is taken or expires."""

from elasticflow.services.admission.policy import POLICY
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import ReserveQuote
from elasticflow.shared.messages.gpus import segments
from elasticflow.shared.messages.job_spec import ContinuedJob, JobClass
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.state import snapshot_encoding
from elasticflow.shared.state.fold.ledger_fold import evolve
from elasticflow.shared.state.idempotent_replies import idempotent_reply
from testbed.histories import NOW_S, History, pool, spec, submit


def hold(job_id: str, reserve_s: float = 60.0, tenant: str = "lab", **changes: object) -> ReserveQuote:
    return ReserveQuote(job_id=job_id, tenant=tenant, spec=spec(deadline_s=None, **changes), reserve_s=reserve_s)


def held(history: History, command: ReserveQuote, now_s: float = NOW_S) -> events.QuoteReserved:
    (quote,) = history.decided(POLICY, command, now_s=now_s)
    assert isinstance(quote, events.QuoteReserved), quote
    return quote


def rejected(history: History, command: ReserveQuote) -> str:
    (answer,) = history.decided(POLICY, command)
    assert isinstance(answer, events.QuoteRejected), answer
    return answer.explanation


def decision(history: History, command: object, now_s: float = NOW_S) -> events.JobAdmitted | events.JobRejected:
    (answer,) = history.decided(POLICY, command, now_s=now_s)
    assert isinstance(answer, events.JobAdmitted | events.JobRejected), answer
    return answer


def test_a_reserved_schedule_begins_when_the_reservation_expires_and_keeps_the_deadline() -> None:
    quote = held(pool(1), hold("a"))
    assert quote.until_s == NOW_S + 60.0
    steps = tuple(segments(quote.schedule))
    assert steps[0].start_s == quote.until_s
    assert steps[-1].end_s <= quote.deadline_s == NOW_S + 163.0  # 60 s reserved, 2 s to start, 100 to train


def test_no_other_job_is_promised_reserved_gpus_until_the_reservation_expires() -> None:
    history = pool(1)
    quote = held(history, hold("a"))
    rival = {"max_iterations": 90, "deadline_s": quote.deadline_s}
    assert isinstance(decision(history, submit("b", **rival)), events.JobRejected)
    late_s = quote.until_s
    late = decision(history, submit("c", max_iterations=90, deadline_s=late_s + 95.0), now_s=late_s)
    assert isinstance(late, events.JobAdmitted)


def test_a_short_job_still_fits_before_a_reserved_schedule() -> None:
    history = pool(1)
    held(history, hold("a"))
    short = decision(history, submit("b", max_iterations=50, deadline_s=NOW_S + 55.0))
    assert isinstance(short, events.JobAdmitted)
    taken = decision(history, submit("a", deadline_s=NOW_S + 163.0), now_s=NOW_S + 59.0)
    assert isinstance(taken, events.JobAdmitted)


def test_a_quote_taken_at_the_last_moment_is_admitted_beside_all_later_promises() -> None:
    history = pool(2)
    quote = held(history, hold("a", max_iterations=200))
    just_before_s = quote.until_s - 0.002
    for number in range(6):
        rival = submit(f"rival-{number}", deadline_s=just_before_s + 110.0 + 20.0 * number)
        history.decided(POLICY, rival, now_s=just_before_s)
    admitted = decision(
        history, submit("a", max_iterations=200, deadline_s=quote.deadline_s), now_s=quote.until_s - 0.001
    )
    assert isinstance(admitted, events.JobAdmitted)
    assert admitted.minimum_satisfactory_share == quote.schedule
    assert not history.state.quote_reservations, "from now on it is the job's"
    (allocated,) = history.decided(ALLOCATOR, now_s=quote.until_s)
    assert isinstance(allocated, events.AllocationDecided)


def test_a_smaller_submission_takes_the_quote_and_a_larger_one_is_judged_like_any_other() -> None:
    before = pool(1)
    quote = held(before, hold("a"))
    less = submit("a", max_iterations=40, deadline_s=quote.deadline_s + 5.0)
    assert isinstance(decision(History(before.state), less), events.JobAdmitted)
    more = decision(before, submit("a", max_iterations=101, deadline_s=quote.deadline_s))
    assert isinstance(more, events.JobRejected)
    assert more.explanation.startswith(
        "its reserved quote cannot be taken: the submission asks for more than was quoted;"
    )
    again = decision(before, submit("a", deadline_s=quote.deadline_s))
    assert isinstance(again, events.JobAdmitted), "the quote is still reserved"


def test_a_job_measured_slower_than_quoted_is_rejected_with_this_explanation() -> None:
    history = pool(1)
    quote = held(history, hold("a"))
    slower = events.ThroughputMeasured(
        profile_key="linear/b64",
        num_gpus=1,
        iterations_per_s=0.5,
        job_id="other",
        generation=1,
        source="training",
        at_s=NOW_S + 1.0,
    )
    history.then(slower)
    late = decision(history, submit("a", deadline_s=quote.deadline_s), now_s=NOW_S + 1.0)
    assert isinstance(late, events.JobRejected)
    assert late.explanation.startswith("its reserved quote cannot be taken: the job was measured since, and is slower")


def test_a_quote_belongs_to_its_tenant() -> None:
    history = pool(1)
    quote = held(history, hold("a"))
    thief = decision(history, submit("a", tenant="thief", deadline_s=quote.deadline_s))
    assert isinstance(thief, events.JobRejected)
    assert thief.reason == "duplicate"
    assert isinstance(decision(history, submit("a", deadline_s=quote.deadline_s)), events.JobAdmitted)


def test_the_same_reservation_twice_has_no_effect_and_repeats_the_reply() -> None:
    history = pool(1)
    quote = held(history, hold("a"))
    assert history.decided(POLICY, hold("a"), now_s=NOW_S + 1.0) == ()
    again = idempotent_reply(history.state, hold("a"))
    assert isinstance(again, events.QuoteReserved)
    assert (again.deadline_s, again.until_s) == (quote.deadline_s, quote.until_s)


def test_a_rejected_reservation_is_explained_in_a_sentence() -> None:
    history = pool(1)
    history.decided(POLICY, submit("live", deadline_s=NOW_S + 150.0))
    assert "another job or quote" in rejected(history, hold("live"))
    assert "only slo jobs" in rejected(history, hold("b", job_class=JobClass.SOFT))
    assert "speed is not known" in rejected(history, hold("c", model_name="new"))
    assert "another job or quote" in rejected(with_quote("a"), hold("a", max_iterations=7))


def with_quote(job_id: str) -> History:
    history = pool(1)
    held(history, hold(job_id))
    return history


def test_quote_reservations_count_for_the_quota_and_not_against_the_job_that_takes_them() -> None:
    history = pool(8, quotas={"lab": TenantQuota(max_jobs_per_day=1)})
    quote = held(history, hold("a"))
    assert "1 of 1 jobs" in rejected(history, hold("b"))
    other = decision(history, submit("c", deadline_s=NOW_S + 300.0))
    assert isinstance(other, events.JobRejected)
    assert other.reason == "quota"
    assert isinstance(decision(history, submit("a", deadline_s=quote.deadline_s)), events.JobAdmitted)


def test_the_number_of_reservations_of_one_tenant_is_limited() -> None:
    history = pool(8)
    said = history.decided(POLICY, *(hold(f"q{number}", max_iterations=1) for number in range(65)))
    assert [type(event) for event in said] == [events.QuoteReserved] * 64 + [events.QuoteRejected]
    history.decided(POLICY, hold("later", max_iterations=1), now_s=NOW_S + 60.0)
    assert set(history.state.quote_reservations) == {"later"}, "expired reservations are forgotten"


def test_a_promise_comes_before_a_reservation_after_the_loss_of_a_node() -> None:
    history = pool(1, 1)
    promise = decision(history, submit("a", deadline_s=NOW_S + 170.0))
    quote = held(history, hold("b"))
    history.then(events.NodeLost(node_id="node-1", incarnation="first-1", reason="silent", at_s=NOW_S + 55.0))
    (allocated,) = history.decided(ALLOCATOR, now_s=NOW_S + 55.0)
    assert isinstance(allocated, events.AllocationDecided)
    assert allocated.num_gpus_by_job == {"a": 1}
    assert isinstance(promise, events.JobAdmitted)
    taken = decision(history, submit("b", deadline_s=quote.deadline_s), now_s=NOW_S + 56.0)
    assert isinstance(taken, events.JobRejected)


def test_the_allocator_lends_reserved_gpus_and_wakes_when_the_reservation_expires() -> None:
    history = pool(1)
    quote = held(history, hold("a"))
    history.decided(POLICY, submit("free", job_class=JobClass.BEST_EFFORT, deadline_s=None))
    (allocated,) = history.decided(ALLOCATOR)
    assert isinstance(allocated, events.AllocationDecided)
    assert allocated.num_gpus_by_job == {"free": 1}
    assert allocated.valid_until_s is not None
    assert allocated.valid_until_s <= quote.until_s


def test_a_snapshot_holds_quotes_and_an_old_event_changes_nothing() -> None:
    history = with_quote("a")
    state = history.state
    assert snapshot_encoding.load(snapshot_encoding.dump(state)) == state
    quote = state.quote_reservations["a"]
    assert evolve(state, events.QuoteRejected(job_id="a", explanation="", at_s=NOW_S), state.sequence) is state
    after = evolve(state, events.QuoteRejected(job_id="a", explanation="", at_s=NOW_S), state.sequence + 1)
    assert after.quote_reservations["a"] == quote


def test_a_quote_for_iterations_that_are_done_is_refused_and_stops_nothing() -> None:
    """A tenant may send any number: the source need not exist."""
    continued = ContinuedJob(job_id="gone", identity="1" * 16, iteration=1_000)
    assert "has no such job" in rejected(pool(1), hold("a", continues=continued))
