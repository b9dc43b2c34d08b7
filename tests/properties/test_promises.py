"""All screens say the same of a promise, and each promise is in one column of the report, after any history."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.history.pool_views import job_view
from elasticflow.history.usage_report import UsageFold, total_of
from elasticflow.shared.state.finish_time import expected_finish_s, margin_s, speed_now
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.promise import LIVE, Promise, promise_of
from elasticflow.web.page_values import expectations, expected_at, finish_at, margin_at
from tests.support.history_strategies import histories

TIMES_S = st.sampled_from((0.0, 5.0, 12.0, 30.0, 99.0, 100.0, 101.0, 130.0))


def jobs_after(messages: tuple[Any, ...]) -> list[Job]:
    state = PoolState()
    for sequence, message in enumerate(messages, 1):
        state = ledger_fold.evolve(state, message, sequence)
    return [*state.live_jobs.values(), *state.ended_jobs.values()]


@given(histories(), TIMES_S)
def test_a_page_that_is_not_told_anything_new_shows_later_what_the_command_line_shows(
    messages: tuple[Any, ...], now_s: float
) -> None:
    for job in jobs_after(messages):
        row = {"expectations": expectations(job), "live": job.live, "deadline_s": job.deadline_s}
        view = job_view(job, now_s)
        assert expected_at(row, now_s)["promise"] == view.promise == promise_of(job, now_s)
        assert finish_at(row, now_s) == view.expected_finish_s == expected_finish_s(job, now_s)
        assert margin_at(row, now_s) == view.margin_s == margin_s(job, now_s)
        rate = expected_at(row, now_s)["iterations_per_s"]
        assert rate == view.iterations_per_s
        assert not job.live or rate == speed_now(job, now_s)


@given(histories(), TIMES_S)
def test_a_margin_is_negative_only_if_the_promise_is_at_risk_or_broken(messages: tuple[Any, ...], now_s: float) -> None:
    for job in jobs_after(messages):
        left_s = margin_s(job, now_s)
        if promise_of(job, now_s) in (Promise.PROMISED, Promise.KEPT) and left_s is not None:
            assert left_s >= 0.0 or not job.planned_share, "in these histories no job has a plan"


@given(histories(), st.integers(0, 20).map(float), st.integers(0, 20).map(float))
def test_each_promise_is_in_one_column_of_the_report(
    messages: tuple[Any, ...], since_s: float, length_s: float
) -> None:
    state, promised = PoolState(), dict[tuple[str, float | None], Job]()
    period, whole = UsageFold(since_s=since_s, until_s=since_s + length_s), UsageFold(since_s=0.0, until_s=200.0)
    for sequence, message in enumerate(messages, 1):
        state = ledger_fold.evolve(state, message, sequence)
        for job in (*state.live_jobs.values(), *state.ended_jobs.values()):
            promised[job.job_id, job.admitted_at_s] = job
        for fold in (period, whole):
            fold.fold(sequence, float(sequence), message)
    for fold in (period, whole):
        row = total_of(fold.usage())
        settled = row.num_kept + row.num_broken + row.num_failed + row.num_cancelled
        assert row.num_promised + row.num_earlier == settled + row.num_live
    row = total_of(whole.usage())
    found = [promise_of(job, 200.0) for job in promised.values()]
    assert (row.num_admitted >= row.num_promised, row.num_earlier) == (True, 0)
    assert row.num_kept == found.count(Promise.KEPT)
    assert row.num_broken == found.count(Promise.BROKEN)
    assert row.num_failed == found.count(Promise.FAILED)
    assert row.num_cancelled == found.count(Promise.CANCELLED)
    assert row.num_live == sum(found.count(promise) for promise in LIVE)
