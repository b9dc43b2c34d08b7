"""Rows of jobs and nodes, and the lines of `eflow watch`, follow from the folded pool."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from elasticflow.cli.listings import lost_word, nodes_table, risk_lines, silence_lines
from elasticflow.cli.watch import changes
from elasticflow.history.event_text import event_text
from elasticflow.history.formatting import shortened
from elasticflow.history.pool_views import job_view, job_views, node_views, present_nodes
from elasticflow.history.tables import fewer_names, jobs_table
from elasticflow.shared.messages import events
from elasticflow.shared.runtime.process.terminal import console
from testbed.histories import NOW_S, History, gpus, pool, spec


def admitted(history: History, job_id: str, at_s: float = NOW_S) -> History:
    return history.then(
        events.JobAdmitted(
            job_id=job_id,
            tenant="lab",
            spec=spec(),
            deadline_s=NOW_S + 100.0,
            minimum_satisfactory_share=(NOW_S, NOW_S + 60.0, 2),
            gpu_seconds=120.0,
            at_s=at_s,
        )
    )


def placed(history: History, job_id: str, *names: str, generation: int = 1) -> History:
    on = events.PlacedJob(job_id=job_id, generation=generation, gpus=gpus(*names))
    return history.then(events.PlacementDecided(placements=(on,), at_s=NOW_S))


def running(history: History, *, iteration: int) -> History:
    placed(admitted(history, "j1"), "j1", "node-0:0", "node-0:1").started("j1", at_s=NOW_S)
    return history.then(
        events.JobProgressed(job_id="j1", generation=1, iteration=iteration, iterations_per_s=2.0, at_s=NOW_S + 10.0)
    )


def test_a_waiting_job_is_expected_when_its_promise_ends() -> None:
    view = job_view(admitted(pool(4), "j1").state.live_jobs["j1"], NOW_S)
    assert (view.activity, view.expected_finish_s, view.margin_s) == ("waiting", NOW_S + 60.0, 40.0)


def test_a_waiting_job_whose_promise_is_over_is_expected_now_at_the_earliest() -> None:
    view = job_view(admitted(pool(4), "j1").state.live_jobs["j1"], NOW_S + 130.0)
    assert (view.activity, view.expected_finish_s, view.margin_s) == ("waiting", NOW_S + 130.0, -30.0)


def test_a_running_job_is_expected_by_its_speed() -> None:
    state = running(pool(4), iteration=20).state
    view = job_view(state.live_jobs["j1"], NOW_S + 12.0)
    assert view.activity == "running"
    assert view.expected_finish_s == NOW_S + 10.0 + 80 / 2.0
    assert view.margin_s == pytest.approx(50.0)


def test_a_job_that_reports_nothing_has_no_speed_and_is_named() -> None:
    state = running(pool(4), iteration=20).state
    (view,) = job_views(state, NOW_S + 19.0)
    assert (view.iterations_per_s, view.silent_s, silence_lines((view,))) == (2.0, None, [])
    (view,) = job_views(state, NOW_S + 44.0)
    assert (view.iterations_per_s, view.silent_s) == (None, 34.0)
    assert view.expected_finish_s == NOW_S + 60.0, "as promised"
    (line,) = silence_lines((view,))
    assert line.startswith("j1 has reported no progress for 34.0s")
    risk = events.JobAtRisk(job_id="j1", generation=1, projected_finish_s=None, deadline_s=0.0, at_s=NOW_S + 40.0)
    (view,) = job_views(running(pool(4), iteration=20).then(risk).state, NOW_S + 44.0)
    assert (view.promise, view.expected_finish_s, view.margin_s) == ("at risk", None, None)
    assert risk_lines((view,), NOW_S + 44.0) == ["j1 is at risk of missing its deadline"]


def test_a_job_that_is_slow_now_but_not_at_risk_is_expected_as_planned() -> None:
    state = running(pool(4), iteration=20).state
    slow = events.JobProgressed(job_id="j1", generation=1, iteration=21, iterations_per_s=0.2, at_s=NOW_S + 11.0)
    history = running(pool(4), iteration=20).then(slow)
    view = job_view(history.state.live_jobs["j1"], NOW_S + 12.0)
    assert (view.promise, view.expected_finish_s) == ("promised", NOW_S + 60.0), "its plan gives it more GPUs later"
    assert job_view(state.live_jobs["j1"], NOW_S + 12.0).expected_finish_s == NOW_S + 50.0


def test_a_failed_job_shows_in_which_iteration_it_failed() -> None:
    failed = events.JobFailed(job_id="j1", generation=1, error="RuntimeError", iteration=40, at_s=NOW_S + 12.0)
    (view,) = job_views(running(pool(4), iteration=5).then(failed).state, NOW_S + 20.0, ended=True)
    assert (view.activity, view.promise, view.iteration, view.margin_s) == ("failed", "failed", 40, None)


def test_a_job_that_should_have_finished_is_expected_now_at_the_earliest() -> None:
    state = running(pool(4), iteration=20).state
    assert job_view(state.live_jobs["j1"], NOW_S + 99.0).expected_finish_s == NOW_S + 99.0


def test_a_job_at_risk_is_listed_with_the_command_that_promises_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EF_TENANT", raising=False)
    history, risk = running(pool(4), iteration=20), NOW_S + 130.0
    assert risk_lines(job_views(history.state, NOW_S + 10.0), NOW_S + 10.0) == []
    history.then(
        events.JobAtRisk(
            job_id="j1",
            generation=1,
            projected_finish_s=risk,
            deadline_s=NOW_S + 100.0,
            earliest_deadline_s=risk,
            at_s=NOW_S + 10.0,
        )
    )
    at_risk = job_views(history.state, NOW_S + 20.5)
    (line,) = risk_lines(at_risk, NOW_S + 20.5)
    assert line.endswith("eflow amend j1 --deadline 110s --tenant lab"), "without the tenant it finds no such job"
    monkeypatch.setenv("EF_TENANT", "lab")
    (line,) = risk_lines(at_risk, NOW_S + 20.5)
    assert line.endswith("eflow amend j1 --deadline 110s")
    assert risk_lines(job_views(history.state, risk), risk) == [], "too late to ask for it"
    history.then(
        events.JobFinished(job_id="j1", generation=1, iteration=100, condition="max_iterations", at_s=NOW_S + 90.0)
    )
    (ended,) = job_views(history.state, NOW_S + 90.0, ended=True)
    assert ended.promise == "kept", "it has ended, and an ended job cannot be amended"
    assert risk_lines((ended,), NOW_S + 90.0) == []


def test_a_broken_job_is_recovering() -> None:
    history = running(pool(4), iteration=20)
    history.then(events.NodeLost(node_id="node-0", incarnation="first-0", reason="silent", at_s=NOW_S))
    assert job_view(history.state.live_jobs["j1"], NOW_S).activity == "recovering"


def test_an_ended_job_shows_its_real_margin() -> None:
    history = running(pool(4), iteration=20).finished("j1", at_s=NOW_S + 70.0)
    (view,) = job_views(history.state, NOW_S + 500.0, ended=True)
    assert (view.activity, view.margin_s, view.num_gpus) == ("finished", 30.0, 0)
    assert job_views(history.state, NOW_S + 500.0) == ()


def test_a_requested_profile_has_no_number_of_iterations() -> None:
    asked = events.ProfileRequested(
        job_id="p", tenant="lab", spec=spec(), deadline_s=None, profile_only=True, at_s=NOW_S
    )
    history = pool(4).then(asked)
    (view,) = job_views(history.state, NOW_S)
    assert (view.activity, view.max_iterations, view.progress) == ("undecided", 0, 0.0)
    text = event_text(asked, None, history.state.live_jobs["p"], history.state)
    assert text.startswith(f"lab requested its profile: {spec().training_function}, iterations of 64 samples; ")


def test_a_micro_batch_of_one_sample_is_singular() -> None:
    exceeded = events.MemoryExceeded(
        job_id="j1", generation=1, node_id="node-0", rank=0, micro_batch_size=2, at_s=NOW_S + 1.0
    )
    state = running(pool(4), iteration=0).then(exceeded).state
    assert event_text(exceeded, None, state.live_jobs["j1"], state).endswith("the job continues with 1 sample")


def test_nodes_show_the_job_on_each_gpu() -> None:
    history = placed(admitted(pool(2, 2), "j1"), "j1", "node-0:1", "node-1:0")
    first, second = node_views(history.state)
    assert (first.jobs, second.jobs) == (("", "j1"), ("j1", ""))
    assert first.num_free_gpus == 1


def test_jobs_stand_in_the_order_of_their_decisions() -> None:
    history = admitted(admitted(pool(4), "b", NOW_S), "a", NOW_S + 1.0)
    assert [view.job_id for view in job_views(history.state, NOW_S)] == ["b", "a"]


def test_a_pipe_gets_a_line_for_each_change_and_none_without() -> None:
    seen: dict[str, tuple[object, ...]] = {}
    history = admitted(pool(4), "j1")
    (line,) = changes(seen, job_views(history.state, NOW_S), NOW_S)
    assert "j1  waiting  0/100  finish in 1m 00s  margin 40.0s" in line
    assert list(changes(seen, job_views(history.state, NOW_S + 1.0), NOW_S + 1.0)) == []
    placed(history, "j1", "node-0:0")
    (line,) = changes(seen, job_views(history.state, NOW_S + 1.0), NOW_S + 1.0)
    assert "starting  1 GPU  " in line


def test_nodes_that_left_or_were_lost_long_ago_are_not_present() -> None:
    history = pool(1, 1, 1, 1)
    for number, reason, at_s in ((1, "left", 0.0), (2, "silent", 0.0), (3, "silent", -4_000.0)):
        lost = events.NodeLost(
            node_id=f"node-{number}", incarnation=f"first-{number}", reason=reason, at_s=NOW_S + at_s
        )
        history.then(lost)
    views = node_views(history.state)
    assert [view.node_id for view in views] == ["node-0", "node-1", "node-2", "node-3"]
    assert [view.node_id for view in present_nodes(views, NOW_S + 10.0)] == ["node-0", "node-2"]
    assert [lost_word(view, NOW_S + 10.0).plain for view in views[1:3]] == [
        "left 10.0s ago",
        "lost 10.0s ago",
    ]


def test_a_node_shows_its_end_and_that_it_is_drained() -> None:
    history = pool(2, 2).then(
        events.NodeEndAnnounced(node_id="node-1", incarnation="first-1", until_s=NOW_S + 7_200.0, at_s=NOW_S)
    )
    views = node_views(history.state)
    assert [(view.until_s, view.draining) for view in views] == [(None, False), (NOW_S + 7_200.0, False)]
    history.then(events.NodeDrainStarted(node_id="node-1", incarnation="first-1", at_s=NOW_S + 7_170.0))
    assert node_views(history.state)[1].draining


def shown_on(width: int, draw: Callable[[], Table], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal of so many columns shows."""
    terminal = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr("elasticflow.history.tables.console", lambda: terminal)
    with terminal.capture() as shown:
        terminal.print(draw())
    return shown.get()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("name", ["profile-spirals-ccdfb9", "n" * 58 + "-0_001"])
def test_a_terminal_shows_the_columns_that_fit_and_both_ends_of_a_name(
    monkeypatch: pytest.MonkeyPatch, width: int, name: str
) -> None:
    views = job_views(admitted(pool(4), name).state, NOW_S)
    header, row = shown_on(width, lambda: jobs_table(views, NOW_S), monkeypatch).splitlines()
    assert max(len(header), len(row)) <= width
    assert "waiting  promised" in row, "the state and the promise, whole"
    assert row.startswith(name[:4])
    assert name[-4:] in row.split()[0]
    assert ("ITERATION" in header) == (width >= 60)
    assert ("DEADLINE" in header) == (width >= 80)


@pytest.mark.parametrize("width", [40, 80])
def test_the_node_table_of_a_narrow_terminal_is_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    history = History().configured()
    for node_id in ("node-0", "a-very-long-name-of-a-machine.example.org-1"):
        joined = events.NodeJoined(
            node_id=node_id, incarnation="1", num_gpus=4, device="cuda", gpu_type="H100-80GB-HBM3", at_s=NOW_S,
            gpu_memory_bytes=80 << 30, isolation="namespaces",
        )  # fmt: skip
        history.then(joined)
    long = "n" * 60
    admitted(history, long)
    history.then(
        events.PlacementDecided(
            placements=(events.PlacedJob(job_id=long, generation=1, gpus=gpus("node-0:0", "node-0:1")),), at_s=NOW_S
        )
    )
    header, *rows = shown_on(width, lambda: nodes_table(node_views(history.state), NOW_S), monkeypatch).splitlines()
    assert max(map(len, (header, *rows))) <= width
    assert header.split()[:2] == ["NODE", "STATE"]
    assert all(("alive" in row and "■■□□" in row) or "□□□□" in row for row in rows)
    assert ("JOBS" in header) == (width == 80)


@pytest.mark.parametrize(("width", "is_shown"), [(40, False), (80, True), (200, True)])
def test_jobs_of_several_tenants_have_a_column_of_tenants(
    monkeypatch: pytest.MonkeyPatch, width: int, is_shown: bool
) -> None:
    (mine,) = job_views(admitted(pool(4), "mine").state, NOW_S)
    theirs = replace(mine, job_id="theirs", tenant="rival")
    header, *rows = shown_on(width, lambda: jobs_table((mine, theirs), NOW_S), monkeypatch).splitlines()
    assert ("TENANT" in header.split()) == is_shown
    assert [tenant in row for row, tenant in zip(rows, (mine.tenant, "rival"), strict=True)] == [is_shown] * 2
    assert "TENANT" not in shown_on(width, lambda: jobs_table((mine, mine), NOW_S), monkeypatch)


def test_names_that_do_not_fit_are_counted() -> None:
    names = "alpha beta gamma"
    assert [fewer_names(names, width) for width in (16, 15, 13, 8)] == [
        names,
        "alpha beta +1",
        "alpha beta +1",
        "alpha +2",
    ]
    assert fewer_names("a-long-name another", 12) == "a-l…-name +1"
    assert shortened("sw-learning_rate-0_001", 16) == "sw-lea…ate-0_001"


def test_a_file_gets_all_columns_and_whole_names(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    console().print(jobs_table(job_views(admitted(pool(4), "n" * 64).state, NOW_S), NOW_S))
    header, row = out.getvalue().splitlines()
    assert "n" * 64 in row
    assert {"CLASS", "PROGRESS", "FINISH", "MARGIN"} <= set(header.split())
