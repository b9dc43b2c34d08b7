"""What a notebook shows of jobs and quotes."""

import copy
import pickle
import re
from dataclasses import replace

from elasticflow.history.pool_views import job_views
from elasticflow.sdk.synchronous import JobViews, Quote
from elasticflow.shared.messages.events import DeadlineQuoted, JobCancelled, JobFailed, JobRejected
from elasticflow.shared.messages.limits import local_time
from testbed.histories import NOW_S
from tests.support.worker_events import admitted, progressed, running

VIEWS = JobViews(job_views(running().then(progressed(1, 20)).state, NOW_S + 6.0), NOW_S + 6.0)
QUOTED = DeadlineQuoted(earliest_deadline_s=NOW_S + 90.0, gpu_seconds=120.4, at_s=NOW_S)


def text_of(html: str) -> str:
    assert html.count("<pre") == html.count("</pre>") > 0
    return re.sub(r"<[^>]*>", "", html)


def test_jobs_are_a_tuple_and_a_table() -> None:
    assert isinstance(VIEWS, tuple)
    assert tuple(VIEWS) == VIEWS
    header, row = text_of(VIEWS._repr_html_()).strip().splitlines()
    assert header.split() == [
        "JOB",
        "STATE",
        "PROMISE",
        "CLASS",
        "GPUS",
        "PROGRESS",
        "ITERATION",
        "RATE/S",
        "FINISH",
        "DEADLINE",
        "MARGIN",
    ]
    assert row.split()[:2] == ["a", "running"]
    assert "20/100" in row
    assert "no jobs" in text_of(JobViews((), NOW_S)._repr_html_())
    for again in (pickle.loads(pickle.dumps(VIEWS)), copy.copy(VIEWS)):
        assert (again, again.now_s, type(again)) == (VIEWS, VIEWS.now_s, JobViews)


def test_a_job_is_a_row_and_what_is_said_of_its_failure() -> None:
    (view,) = VIEWS
    assert text_of(view._repr_html_()).split()[11:13] == ["a", "running"]
    failed = replace(view, activity="failed", explanation="ValueError: <b>no</b>", last_lines="line 1\nline 2")
    html = failed._repr_html_()
    assert "<b>" not in html, "what users' code says is no markup"
    said = [line.strip() for line in text_of(html).splitlines()]
    assert [line for line in said if line][-3:] == ["ValueError: &lt;b&gt;no&lt;/b&gt;", "line 1", "line 2"]


def test_a_quote_is_the_event_and_a_table() -> None:
    quote = Quote.of(QUOTED)
    assert isinstance(quote, DeadlineQuoted)
    assert (quote.earliest_deadline_s, quote.gpu_seconds) == (NOW_S + 90.0, 120.4)
    shown = text_of(quote._repr_html_())
    assert re.search(r"EARLIEST DEADLINE +\d\d:\d\d:\d\d \(in 1m 30s\)", shown), shown
    assert re.search(r"GPU-SECONDS +120\s", shown)
    none = text_of(Quote.of(replace(QUOTED, earliest_deadline_s=None, explanation="no GPU"))._repr_html_())
    assert re.search(r"EARLIEST DEADLINE +-", none)
    assert "no GPU" in none


def test_each_result_is_printed_as_a_line() -> None:
    header, row = str(VIEWS).splitlines()
    assert header.split()[:5] == ["JOB", "STATE", "PROMISE", "CLASS", "GPUS"]
    assert row.split()[:2] == ["a", "running"]
    assert str(VIEWS[0]).startswith("a running  20/100 iterations")
    assert str(JobViews((), NOW_S)) == "no jobs"
    assert str(Quote.of(QUOTED)).startswith("earliest deadline ")
    assert str(Quote(earliest_deadline_s=None, explanation="its speed is unknown", at_s=NOW_S)) == (
        "no quote: its speed is unknown"
    )
    by = local_time(NOW_S + 60.0)
    rejected = JobRejected(
        job_id="b",
        tenant="t",
        spec=None,
        reason="deadline",
        explanation="too early",
        earliest_deadline_s=NOW_S + 60.0,
        at_s=NOW_S,
    )
    assert str(replace(admitted("a"), deadline_s=NOW_S + 60.0)) == f"admitted a: done by {by}"
    assert str(rejected) == f"rejected b: too early; earliest deadline {by}"
    assert str(JobCancelled(job_id="c", reason="wrong data", at_s=NOW_S)) == "cancelled c: wrong data"
    assert str(JobFailed(job_id="d", generation=1, error="KeyError: 'x'", at_s=NOW_S)) == "failed d: KeyError: 'x'"
