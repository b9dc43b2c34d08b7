"""Padding loads in the views of a terminal: rows, lines of `eflow watch`, sentences of `eflow explain`, their GPUs."""

from typing import Any

import pytest
from rich.console import RenderableType
from rich.text import Text

from elasticflow.cli.listings import loads_table, nodes_table, starving_lines
from elasticflow.cli.watch import load_changes, picture
from elasticflow.history.job_history import job_history
from elasticflow.history.pool_views import load_views, node_views
from elasticflow.shared.messages import events
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.runtime.process.terminal import console
from testbed.histories import NOW_S, History, pool
from tests.support.worker_events import admitted, placed

PROTEINS = LoadSpec(task_function="proteins:fold", task_s=10.9, overhead_s=2.8, start_stop_s=7.0)


def opened(load_id: str = "fold", at_s: float = NOW_S, useful_share: float | None = 0.545) -> events.LoadOpened:
    return events.LoadOpened(load_id=load_id, tenant="lab", spec=PROTEINS, useful_share=useful_share, at_s=at_s)


def sealed(num_tasks: int = 5_000) -> events.LoadSealed:
    return events.LoadSealed(load_id="fold", num_tasks=num_tasks, at_s=NOW_S + 1.0)


def progressed(num_results: int) -> events.LoadProgressed:
    return events.LoadProgressed(load_id="fold", num_results=num_results, at_s=NOW_S + 2.0)


def finished(num_results: int = 5_000) -> events.LoadFinished:
    return events.LoadFinished(load_id="fold", num_results=num_results, at_s=NOW_S + 90.0)


def cancelled(load_id: str = "fold") -> events.LoadCancelled:
    return events.LoadCancelled(load_id=load_id, reason="wrong model", at_s=NOW_S + 3.0)


def explained(*messages: Any, name: str = "fold") -> list[str]:
    entries = ((number, NOW_S, message) for number, message in enumerate(messages, 1))
    return [entry.text for entry in job_history(entries, name)]


@pytest.fixture(params=[80, 160])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The columns of the terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def shown(table: RenderableType) -> str:
    """The text on the terminal."""
    screen = console()
    with screen.capture() as capture:
        screen.print(table)
    return Text.from_ansi(capture.get()).plain


def test_the_number_of_tasks_is_unknown_until_the_load_is_sealed() -> None:
    history = pool(2).then(opened(), progressed(7))
    (view,) = load_views(history.state, NOW_S)
    assert (view.phase, view.tasks_in_words, view.progress) == ("open", "7/?", 0.0)
    (view,) = load_views(history.then(sealed(), progressed(1_250)).state, NOW_S)
    assert (view.phase, view.tasks_in_words, view.progress) == ("sealed", "1,250/5,000", 0.25)
    assert view.useful_share == 0.545


def test_a_load_without_tasks_that_finished_is_complete() -> None:
    (view,) = load_views(pool(2).then(opened(), sealed(0), finished(0)).state, NOW_S, ended=True)
    assert (view.phase, view.progress, view.ended_at_s) == ("finished", 1.0, NOW_S + 90.0)


def test_loads_stand_in_the_order_of_their_openings_and_ended_ones_on_request() -> None:
    history = pool(2).then(opened("b"), opened("a", NOW_S + 1.0), opened("c", NOW_S + 2.0), cancelled("b"))
    assert [view.load_id for view in load_views(history.state, NOW_S)] == ["a", "c"]
    views = load_views(history.state, NOW_S, ended=True)
    assert [view.load_id for view in views] == ["b", "a", "c"]
    assert views[0].explanation == "wrong model"


def test_a_pipe_gets_a_line_for_each_change_of_a_load() -> None:
    seen: dict[str, tuple[object, ...]] = {}

    def lines(history: History) -> list[str]:
        views = load_views(history.state, NOW_S, ended=True)
        return [line.partition("  ")[2] for line in load_changes(seen, views, NOW_S)]

    history = pool(2).then(opened())
    assert lines(history) == ["fold  open  0/? tasks"]
    assert lines(history) == []
    assert lines(history.then(sealed())) == ["fold  sealed  0/5,000 tasks"]
    assert lines(history.then(progressed(100))) == [], "less than a tenth"
    assert lines(history.then(cancelled())) == ["fold  cancelled  100/5,000 tasks  wrong model"]


def test_a_load_whose_tasks_fit_no_idle_window_starves() -> None:
    history = pool(2).then(opened())
    (view,) = load_views(history.state, NOW_S + 5.0)
    assert not view.starves, "the first window may last for long"
    history.then(admitted(), placed(10, "node-0:0", "node-0:1"))
    (view,) = load_views(history.state, NOW_S + 99.0)
    assert (view.starves, view.longest_window_s) == (True, 10.0)
    (line,) = starving_lines((view,))
    assert line.startswith("fold starves: a task takes 13.7s, and the longest idle window lasted 10.0s")


def test_only_while_a_load_is_live_idle_gpus_are_for_padding() -> None:
    history = pool(2, 4).then(admitted(), placed(1, "node-0:0", "node-1:1"))
    assert [view.num_padding_gpus for view in node_views(history.state)] == [0, 0]
    history.then(opened())
    assert [view.num_padding_gpus for view in node_views(history.state)] == [1, 3]
    history.then(cancelled())
    assert [view.num_padding_gpus for view in node_views(history.state)] == [0, 0]


@pytest.mark.usefixtures("width")
def test_the_nodes_have_a_column_of_padding_only_while_a_load_is_live() -> None:
    history = pool(2)
    assert "PADDING" not in shown(nodes_table(node_views(history.state), NOW_S))
    history.then(opened())
    lines = shown(nodes_table(node_views(history.state), NOW_S)).splitlines()
    assert lines[0].split() == ["NODE", "STATE", "DEVICE", "FREE", "PADDING", "GPUS", "JOBS"]
    assert lines[1].split() == ["node-0", "alive", "cpu", "2/2", "2", "□□", "-"]


def test_a_narrow_terminal_shows_the_most_important_columns_whole(width: int) -> None:
    history = pool(2).then(opened(), sealed(), progressed(1_250), finished())
    text = shown(loads_table(load_views(history.state, NOW_S, ended=True), NOW_S + 100.0))
    assert "…" not in text
    assert ("proteins:fold" in text, "lab" in text) == (width == 160, True)
    assert [word in text for word in ("finished", "5,000/5,000", "54.5%", "1m 40s")] == [True] * 4


@pytest.mark.usefixtures("width")
def test_watch_shows_live_loads_beneath_the_jobs() -> None:
    history = pool(2)
    assert "LOAD" not in shown(picture(history.state, NOW_S))
    text = shown(picture(history.then(opened()).state, NOW_S))
    assert text.index("no jobs now") < text.index("LOAD") < text.index("0/?")
    assert "LOAD" not in shown(picture(history.then(cancelled()).state, NOW_S))


def test_the_history_of_a_load_has_each_decision_and_its_newest_progress() -> None:
    other = opened("other")
    assert explained(opened(), other, sealed(), progressed(10), progressed(20), finished()) == [
        "opened by lab: proteins:fold, tasks of 10.9 s with 2.8 s of overhead, 7 s to start and end a runner; "
        "it is predicted to use 54.5% of the idle GPU time",
        "sealed with 5,000 tasks",
        "results of 20 of 5,000 tasks are stored",
        "finished: the results of 5,000 tasks are stored, 1m 30s after its opening",
    ]


def test_the_history_of_a_load_names_why_it_ended_or_never_opened() -> None:
    rejected = events.LoadRejected(
        load_id="fold",
        tenant="lab",
        reason="useful_share",
        explanation="it does not pay; tasks of 38.5 s would",
        useful_share=0.02,
        best_task_s=38.5,
        at_s=NOW_S,
    )
    assert explained(rejected) == ["lab requested it; rejected (useful_share): it does not pay; tasks of 38.5 s would"]
    assert explained(opened(useful_share=None), progressed(3), cancelled())[0].endswith("no GPU was idle so far")
    assert explained(opened(), progressed(3), cancelled())[2] == "cancelled, with 3 results counted: wrong model"
    assert explained(opened(), name="another") == []
