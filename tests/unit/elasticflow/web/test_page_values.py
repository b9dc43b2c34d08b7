"""The values that a browser gets."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from elasticflow.client.ledger import LedgerEntry
from elasticflow.history.job_history import HistoryEntry
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.state.pool import PoolState
from elasticflow.web.page_values import (
    MAX_JOBS,
    Known,
    expected_at,
    feed_row,
    job_detail,
    past_update,
    pool_update,
    sentence_at,
    tenant_rows,
)
from elasticflow.web.pool_history import FeedEntry, PoolHistory
from elasticflow.web.read_routes import encoded
from testbed.histories import NOW_S, gpus, pool, submit
from testbed.page_ledger import HOSTILE, page_history, recorded
from tests.support.two_types import two_types
from tests.support.worker_events import admitted

END_S = NOW_S + 60.0
LOAD = LoadSpec(task_function="proteins:fold", task_s=1.0)


def folded(messages: Sequence[LedgerEntry]) -> PoolHistory:
    history = PoolHistory()
    for stored, message in messages:
        history.fold(stored.sequence, stored.stored_at_s, message)
    return history


@pytest.fixture(scope="module")
def history() -> PoolHistory:
    return folded(recorded(page_history()))


def test_of_ten_thousand_jobs_the_live_and_the_newest_are_sent_and_the_others_counted() -> None:
    history, num_jobs = PoolHistory(), 10_000
    jobs = [admitted(f"job-{number:05d}", at_s=NOW_S + number) for number in range(num_jobs)]
    failed = [events.JobCancelled(job_id=job.job_id, reason="", at_s=END_S) for job in jobs if job.at_s % 10]
    for sequence, change in enumerate((jobs, failed), start=1):
        decision = events.PlanDecided(
            service="admission", based_on=sequence - 1, now_s=END_S, events=tuple[PlanEvent, ...](change)
        )
        history.fold(sequence, END_S, decision)
    assert (len(history.state.live_jobs), len(history.state.ended_jobs)) == (1_000, 9_000)
    update = pool_update(history, END_S, after=0)
    assert (len(update["jobs"]), update["num_jobs"]) == (MAX_JOBS, num_jobs)
    assert pool_update(history, END_S, after=history.state.sequence)["num_jobs"] == num_jobs
    assert sum(row["live"] for row in update["jobs"]) == 1_000
    assert min(row["decided_at_s"] for row in update["jobs"] if not row["live"]) > NOW_S + 8_000
    assert len(encoded(update)) < 3_000_000


def test_a_first_update_has_everything(history: PoolHistory) -> None:
    update = pool_update(history, END_S, after=0)
    rows = {row["job_id"]: row for row in update["jobs"]}
    assert {name: expected_at(row, END_S)["promise"] for name, row in rows.items()} == {
        "crashed": "failed",
        "kept": "kept",
        "rejected": "none",
        "risky": "at risk",
        "running": "promised",
    }
    assert (update["num_gpus"], len(update["nodes"])) == (8, 2)
    assert rows["running"]["steps"][0][0] == NOW_S + 38.0
    assert rows["running"]["promised"]
    assert rows["kept"]["promised"] == []
    assert rows["kept"]["sentence"] == "finished, iteration 100 of 100"
    assert sentence_at(rows["kept"], END_S) == "finished, iteration 100 of 100; it ended 1m 10s before its deadline"


def test_the_end_of_a_job_and_a_padding_load_change_the_nodes() -> None:
    history = page_history()
    for change in (
        lambda: history.finished("running", at_s=NOW_S + 59.0),
        lambda: history.then(
            events.PlanDecided(
                service="admission",
                based_on=history.state.sequence,
                now_s=NOW_S + 60.0,
                events=(
                    events.LoadOpened(load_id="fold", tenant="lab", spec=LOAD, useful_share=0.9, at_s=NOW_S + 60.0),
                ),
            )
        ),
    ):
        before = len(history.messages)
        change()
        assert pool_update(folded(recorded(history)), END_S, after=before)["nodes"] is not None


def test_a_decision_names_files_without_the_folders_and_digests_of_the_pool() -> None:
    def shown(text: str) -> str:
        entry = HistoryEntry(sequence=1, at_s=NOW_S, type="JobFailed", text=text)
        return feed_row(FeedEntry(name="a", entry=entry))["text"]

    assert shown("written, 2 kB: /srv/eflow/jobs/3f9a1c77aa/model.pt") == "written, 2 kB: …/model.pt"
    assert shown(f"no code {'3f9a1c' * 8} here") == "no code 3f9a1c… here"
    for text in (
        "its speed is 1.2/s on 1 GPU, 2/s on 2 GPUs",
        "iterations of 64 samples, lab/model",
        "node-0:0 and/or",
    ):
        assert shown(text) == text


def test_a_later_update_has_only_what_changed(history: PoolHistory) -> None:
    update = pool_update(history, END_S, after=history.state.sequence - 1)
    assert [row["job_id"] for row in update["jobs"]] == ["risky"]
    assert update["nodes"] is None
    assert [row["type"] for row in update["feed"]] == ["JobAtRisk"]


def test_the_past_knows_nothing_of_the_future(history: PoolHistory) -> None:
    past = folded(recorded(page_history())[:20])
    then = past_update(history, past.state, NOW_S + 20.0, None)
    assert then == pool_update(past, NOW_S + 20.0, after=0) | {"whole": True, "gone": []}
    assert [row["steps"] for row in then["jobs"]] == [[[NOW_S + 1.0, 8]]]


@pytest.mark.parametrize("to", [1, 8, 40, 60, 67])
@pytest.mark.parametrize("start", [0, 5, 30, 66])
def test_what_differs_from_a_known_state_makes_the_other(start: int, to: int) -> None:
    messages = recorded(page_history())
    history = folded(messages)
    (known, known_s), (state, now_s) = ((folded(messages[:end]).state, NOW_S + end) for end in (start, to))
    before, whole = past_update(history, known, known_s, None), past_update(history, state, now_s, None)
    part = past_update(history, state, now_s, Known(known, known_s))
    rows = {row["job_id"]: row for row in before["jobs"] if row["job_id"] not in part["gone"]}
    rows |= {row["job_id"]: row for row in part["jobs"]}
    assert rows == {row["job_id"]: row for row in whole["jobs"]}
    others = set(whole) - {"jobs", "nodes", "whole", "gone"}
    assert {name: part[name] for name in others} == {name: whole[name] for name in others}


def test_a_step_of_one_message_names_one_job() -> None:
    messages = recorded(page_history())
    history, before = folded(messages), folded(messages[:15]).state
    step = past_update(history, folded(messages[:16]).state, NOW_S + 12.0, Known(before, NOW_S + 11.0))
    assert ([row["job_id"] for row in step["jobs"]], step["nodes"]) == (["kept"], None)


def test_a_job_has_its_offers_reports_and_texts(history: PoolHistory) -> None:
    rejected = job_detail(history, history.state, history.state.ended_jobs["rejected"], END_S)
    assert "iterations by" in rejected["offers"][0]["text"]
    crashed = job_detail(history, history.state, history.state.ended_jobs["crashed"], END_S)
    assert crashed["hyperparameters"] == {"note": HOSTILE}  # as it is: the browser shows text as text
    assert len(crashed["reports"]) == 3


def test_tenants_have_what_they_were_promised(history: PoolHistory) -> None:
    (row,) = tenant_rows(history.state, END_S)
    assert (row["tenant"], row["num_live_jobs"], row["num_promised_jobs"]) == ("lab", 2, 4)
    assert row["promised_gpu_hours"] > 0
    assert tenant_rows(PoolState(), END_S) == []


def test_tenants_have_gpus_and_hours_by_type_where_a_pool_has_several() -> None:
    (alone,) = tenant_rows(pool(4).then(admitted(gpu_seconds=3_600.0)).state, NOW_S)
    assert (alone["num_gpus_by_type"], alone["promised_gpu_hours_by_type"]) == ({}, {})
    on_both = events.PlacedJob(
        job_id="a", generation=1, gpus=gpus("node-0:0", "node-0:1", "node-1:0"), virtual_nodes_by_rank=(3, 3, 2)
    )
    history = two_types().then(
        admitted("a", gpu_seconds=7_200.0),
        admitted("b", gpu_type="P100", gpu_seconds=3_600.0, at_s=NOW_S + 1.0),
        events.PlacementDecided(placements=(on_both,), at_s=NOW_S + 2.0),
    )
    (row,) = tenant_rows(history.state, END_S)
    assert (row["num_gpus"], row["num_gpus_by_type"]) == (3, {"P100": 1, "V100": 2})
    assert (row["promised_gpu_hours"], row["promised_gpu_hours_by_type"]) == (3.0, {"V100": 2.0, "P100": 1.0})


def test_the_page_of_a_name_shows_its_job_at_that_time_and_none_of_the_others() -> None:
    ledger = page_history()
    before = ledger.state.sequence
    crashed = ledger.state.ended_jobs["crashed"]
    again = replace(submit("crashed", max_iterations=50, deadline_s=NOW_S + 300.0), replaces=crashed.identity)
    ledger.decided(ADMISSION, again, now_s=NOW_S + 61.0)
    history = folded(recorded(ledger))
    state, begin = ledger.state, ledger.state.sequence
    shown = job_detail(history, state, state.live_jobs["crashed"], END_S)
    assert [entry["sequence"] for entry in shown["history"]] == [begin]
    assert (shown["reports"], shown["row"]["steps"]) == ([], [])
    past = folded(recorded(ledger)[:before])
    then = job_detail(history, past.state, crashed, END_S)
    assert then == job_detail(past, past.state, crashed, END_S)
    assert then["reports"]
    assert then["row"]["steps"]
