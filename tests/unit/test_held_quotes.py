"""A quote that is held is a promise in all but name, until it is taken or its time is over."""

from services.admission.policy import POLICY
from services.allocator.policy import POLICY as ALLOCATOR
from shared.messages import events, snapshot
from shared.messages.cluster import TenantQuota, segments
from shared.messages.commands import HoldQuote
from shared.messages.job import JobClass
from shared.messages.lifecycle import evolve
from shared.messages.outcome import told_before
from tests.histories import NOW_S, History, pool, spec, submit


def hold(job_id: str, hold_s: float = 60.0, tenant: str = "lab", **changes: object) -> HoldQuote:
    return HoldQuote(job_id=job_id, tenant=tenant, spec=spec(deadline_s=None, **changes), hold_s=hold_s)


def held(history: History, wish: HoldQuote, now_s: float = NOW_S) -> events.QuoteHeld:
    (quote,) = history.decided(POLICY, wish, now_s=now_s)
    assert isinstance(quote, events.QuoteHeld), quote
    return quote


def refused(history: History, wish: HoldQuote) -> str:
    (answer,) = history.decided(POLICY, wish)
    assert isinstance(answer, events.QuoteRefused), answer
    return answer.explanation


def decision(history: History, wish: object, now_s: float = NOW_S) -> events.JobAdmitted | events.JobRejected:
    (answer,) = history.decided(POLICY, wish, now_s=now_s)
    assert isinstance(answer, events.JobAdmitted | events.JobRejected), answer
    return answer


def test_what_is_held_begins_when_the_hold_ends_and_keeps_the_deadline() -> None:
    quote = held(pool(1), hold("a"))
    assert quote.until_s == NOW_S + 60.0
    steps = tuple(segments(quote.schedule))
    assert steps[0].start_s == quote.until_s
    assert steps[-1].end_s <= quote.deadline_s == NOW_S + 163.0  # 60 s held, 2 s to start, 100 to train


def test_nobody_else_is_promised_what_is_held_until_the_hold_is_over() -> None:
    history = pool(1)
    quote = held(history, hold("a"))
    rival = {"max_iterations": 90, "deadline_s": quote.deadline_s}
    assert isinstance(decision(history, submit("b", **rival)), events.JobRejected)
    late_s = quote.until_s
    late = decision(history, submit("c", max_iterations=90, deadline_s=late_s + 95.0), now_s=late_s)
    assert isinstance(late, events.JobAdmitted)


def test_a_short_job_still_fits_before_what_is_held() -> None:
    history = pool(1)
    held(history, hold("a"))
    short = decision(history, submit("b", max_iterations=50, deadline_s=NOW_S + 55.0))
    assert isinstance(short, events.JobAdmitted)
    taken = decision(history, submit("a", deadline_s=NOW_S + 163.0), now_s=NOW_S + 59.0)
    assert isinstance(taken, events.JobAdmitted)


def test_who_takes_a_quote_at_the_last_moment_is_admitted_beside_all_that_came_between() -> None:
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
    assert not history.state.held_quotes, "from now on it is the job's"
    (allocated,) = history.decided(ALLOCATOR, now_s=quote.until_s)
    assert isinstance(allocated, events.AllocationDecided)


def test_who_asks_for_less_takes_it_too_and_who_asks_for_more_is_judged_like_any_other() -> None:
    before = pool(1)
    quote = held(before, hold("a"))
    less = submit("a", max_iterations=40, deadline_s=quote.deadline_s + 5.0)
    assert isinstance(decision(History(before.state), less), events.JobAdmitted)
    more = decision(before, submit("a", max_iterations=101, deadline_s=quote.deadline_s))
    assert isinstance(more, events.JobRejected)
    assert more.explanation.startswith(
        "the quote held for it cannot be taken: it asks for more than was quoted;"
    )
    again = decision(before, submit("a", deadline_s=quote.deadline_s))
    assert isinstance(again, events.JobAdmitted), "the quote is still held"


def test_a_job_that_turns_out_slower_than_it_was_quoted_on_is_told_so() -> None:
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
    assert late.explanation.startswith("the quote held for it cannot be taken: measured since, it is slower")


def test_a_quote_belongs_to_its_tenant() -> None:
    history = pool(1)
    quote = held(history, hold("a"))
    thief = decision(history, submit("a", tenant="thief", deadline_s=quote.deadline_s))
    assert isinstance(thief, events.JobRejected)
    assert thief.reason == "duplicate"
    assert isinstance(decision(history, submit("a", deadline_s=quote.deadline_s)), events.JobAdmitted)


def test_the_same_wish_twice_is_held_once_and_told_again() -> None:
    history = pool(1)
    quote = held(history, hold("a"))
    assert history.decided(POLICY, hold("a"), now_s=NOW_S + 1.0) == ()
    again = told_before(history.state, hold("a"))
    assert isinstance(again, events.QuoteHeld)
    assert (again.deadline_s, again.until_s) == (quote.deadline_s, quote.until_s)


def test_what_cannot_be_held_is_said_in_a_sentence() -> None:
    history = pool(1)
    history.decided(POLICY, submit("live", deadline_s=NOW_S + 150.0))
    assert "another job or quote" in refused(history, hold("live"))
    assert "only slo jobs" in refused(history, hold("b", job_class=JobClass.SOFT))
    assert "speed is not known" in refused(history, hold("c", model_name="new"))
    assert "another job or quote" in refused(with_quote("a"), hold("a", max_iterations=7))


def with_quote(job_id: str) -> History:
    history = pool(1)
    held(history, hold(job_id))
    return history


def test_held_quotes_count_for_the_quota_and_not_against_the_job_that_takes_them() -> None:
    history = pool(8, quotas={"lab": TenantQuota(max_jobs_per_day=1)})
    quote = held(history, hold("a"))
    assert "1 of 1 jobs" in refused(history, hold("b"))
    other = decision(history, submit("c", deadline_s=NOW_S + 300.0))
    assert isinstance(other, events.JobRejected)
    assert other.reason == "quota"
    assert isinstance(decision(history, submit("a", deadline_s=quote.deadline_s)), events.JobAdmitted)


def test_the_number_of_quotes_of_one_tenant_is_bounded() -> None:
    history = pool(8)
    said = history.decided(POLICY, *(hold(f"q{number}", max_iterations=1) for number in range(65)))
    assert [type(event) for event in said] == [events.QuoteHeld] * 64 + [events.QuoteRefused]
    history.decided(POLICY, hold("later", max_iterations=1), now_s=NOW_S + 60.0)
    assert set(history.state.held_quotes) == {"later"}, "those that are over are forgotten"


def test_a_promise_comes_before_a_quote_where_a_node_is_lost() -> None:
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


def test_the_allocator_looks_again_when_a_hold_ends_and_lends_the_gpus_until_then() -> None:
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
    assert snapshot.load(snapshot.dump(state)) == state
    quote = state.held_quotes["a"]
    assert evolve(state, events.QuoteRefused(job_id="a", explanation="", at_s=NOW_S), state.sequence) is state
    after = evolve(state, events.QuoteRefused(job_id="a", explanation="", at_s=NOW_S), state.sequence + 1)
    assert after.held_quotes["a"] == quote
