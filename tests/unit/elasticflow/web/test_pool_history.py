"""What the page keeps of a ledger: GPUs and reports over time, sentences, and past states."""

import asyncio

import pytest

from elasticflow.history.job_history import job_history
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState
from elasticflow.web import pool_history, sources
from elasticflow.web import pool_history as reports_module
from elasticflow.web.pool_history import PoolHistory, Report, Reports
from elasticflow.web.sources import RecordedSource
from testbed.histories import NOW_S, History
from testbed.page_ledger import page_history, recorded

LEDGER = page_history()
JOBS = ("kept", "rejected", "crashed", "running", "risky")


def folded(history: History, up_to: int | None = None) -> PoolHistory:
    folded = PoolHistory()
    for stored, message in recorded(history)[:up_to]:
        folded.fold(stored.sequence, stored.stored_at_s, message)
    return folded


@pytest.mark.parametrize("name", JOBS)
def test_the_page_tells_a_job_as_explain_does(name: str) -> None:
    told = folded(LEDGER).tracks[name].history
    entries = [(stored.sequence, stored.stored_at_s, message) for stored, message in recorded(LEDGER)]
    assert tuple(told) == job_history(entries, name)
    assert told


def test_gpus_over_time_begin_with_the_placement_and_end_with_the_job() -> None:
    steps = folded(LEDGER).tracks["kept"].steps
    assert [(step.at_s - NOW_S, step.num_gpus) for step in steps] == [(1.0, 8), (30.0, 0)]


def test_reports_have_the_margin_of_their_time() -> None:
    report = next(iter(folded(LEDGER).tracks["kept"].reports))
    assert (report.iteration, report.metrics) == (4, {"loss": 1.0})
    assert report.margin_s == pytest.approx(100.0 - (3.0 + 96 / 4.0))


def test_too_many_reports_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "MAX_REPORTS", 8)
    reports = list(folded(LEDGER).tracks["kept"].reports)
    assert len(reports) <= 8
    assert reports[-1].iteration == 96


def test_a_report_is_kept_with_what_it_does_not_say() -> None:
    reports = Reports()
    made = [
        Report(
            sequence=number,
            at_s=NOW_S,
            iteration=number,
            num_gpus=2,
            iterations_per_s=rate,
            margin_s=None,
            metrics=metrics,
        )
        for number, (rate, metrics) in enumerate(((None, {"loss": 1.0}), (2.0, {"accuracy": 0.5}), (0.0, {})), start=1)
    ]
    for report in made:
        reports.append(report)
    assert list(reports) == made


def test_the_feed_has_decisions_without_reports_and_consequences() -> None:
    history = folded(LEDGER)
    feed = history.feed_until(history.state.sequence, count=1000)
    types = {entry.entry.type for entry in feed}
    assert {"JobAdmitted", "JobRejected", "AllocationDecided", "NodeJoined", "JobAtRisk", "JobFailed"} <= types
    assert not {"JobProgressed", "WorkersStopped"} & types
    joined = next(entry for entry in feed if entry.entry.type == "NodeJoined")
    assert (joined.name, joined.entry.text) == ("", "node-0 joined with 4 GPUs")


def test_only_what_a_later_message_concerns_has_changed() -> None:
    history = folded(LEDGER)
    end = history.state.sequence
    assert set(history.changed_after(0)) == set(JOBS)
    assert set(history.changed_after(end - 1)) == {"risky"}
    assert set(history.changed_after(end)) == set()


@pytest.mark.parametrize(("every", "most"), [(1, 64), (1, 3), (5, 2), (128, 64)])
def test_a_past_state_is_the_one_that_was_folded(monkeypatch: pytest.MonkeyPatch, every: int, most: int) -> None:
    monkeypatch.setattr(pool_history, "CHECKPOINT_EVERY", every)
    monkeypatch.setattr(pool_history, "MAX_CHECKPOINTS", most)
    monkeypatch.setattr(sources, "_MAX_STATES", most)
    monkeypatch.setattr(sources, "_KEEP_EVERY", every)
    monkeypatch.setattr(sources, "_MAX_ENTRIES", 2 * every)
    source = RecordedSource("ledger", recorded(LEDGER))

    async def compare() -> None:
        await source.fold_all()
        state = PoolState()
        for stored, message in recorded(LEDGER):
            state = ledger_fold.evolve(state, message, stored.sequence)
            assert await source.past.at(stored.sequence) == state
            assert source.history.stored_at_s(stored.sequence) == stored.stored_at_s
        assert await source.past.at(1 << 40) == state
        for sequence in (*range(60, 0, -1), *(number * 29 % 67 + 1 for number in range(67))):
            assert await source.past.at(sequence) == folded(LEDGER, sequence).state
        assert await source.past.at(0) == PoolState()
        at_20_s = await source.past.at_time(NOW_S + 20.0)
        assert at_20_s.live_jobs["kept"].iteration == 4 * 18
        for second in range(59):
            until_s = NOW_S + second
            sequence = max(stored.sequence for stored, _ in recorded(LEDGER) if stored.stored_at_s <= until_s)
            assert (await source.past.at_time(until_s)).sequence == sequence

    asyncio.run(compare())
