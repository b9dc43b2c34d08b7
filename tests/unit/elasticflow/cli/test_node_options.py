"""The end of a node in words, and as options of `eflow node` and `eflow drain` give it."""

import io
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from elasticflow.cli.app import app
from elasticflow.cli.listings import nodes_table
from elasticflow.cli.option_values import end_of, future_end_of
from elasticflow.cli.up import NodeOptions
from elasticflow.history.job_history import cause_in_words
from elasticflow.history.pool_views import node_views
from elasticflow.shared.messages import events
from testbed.histories import NOW_S, pool


def table(history_nodes: events.NodeEndAnnounced | None) -> str:
    history = pool(2, 2)
    if history_nodes is not None:
        history.then(history_nodes)
    out = io.StringIO()
    Console(file=out, width=160).print(nodes_table(node_views(history.state), NOW_S))
    return out.getvalue()


def announced(until_s: float | None) -> events.NodeEndAnnounced:
    return events.NodeEndAnnounced(node_id="node-1", incarnation="first-1", until_s=until_s, at_s=NOW_S)


def test_an_end_is_a_duration_a_time_or_seconds_as_slurm_has_them() -> None:
    assert end_of("2h30m", "--until", NOW_S) == NOW_S + 9_000.0
    assert end_of("1800007200", "--until", NOW_S) == 1_800_007_200.0
    local = datetime.fromtimestamp(NOW_S + 60.0).replace(microsecond=0)  # noqa: DTZ006 - as a user writes it
    assert end_of(local.isoformat(), "--until", NOW_S) == local.timestamp()
    with pytest.raises(typer.BadParameter, match="soon"):
        end_of("soon", "--until", NOW_S)


@pytest.mark.parametrize("end", ["2001-01-01T00:00", "978307200", "0s"])
def test_an_end_that_is_over_is_refused(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://nowhere.invalid:1")
    drained = CliRunner().invoke(app, ["drain", "node-0", "--at", end], prog_name="eflow", env={"COLUMNS": "200"})
    said = " ".join(drained.output.replace("│", "").split())
    assert (drained.exit_code, "--at" in said) == (2, True)
    assert "or leave it out to drain the node now" in said
    node = NodeOptions(nats_url="nats://nowhere.invalid:1", data_dir=Path("data"), until=end)
    with pytest.raises(typer.BadParameter, match=r"in the past; choose a later time$|longer than 0 s$") as refused:
        node.environment()
    assert refused.value.param_hint == "--until"


def test_an_end_to_come_is_taken() -> None:
    node = NodeOptions(nats_url="nats://nowhere.invalid:1", data_dir=Path("data"), until="4102444800")
    assert node.environment()["EF_NODE_UNTIL"] == "4102444800.000"
    with pytest.raises(typer.BadParameter, match="is no time"):
        future_end_of("9" * 30, "--until", NOW_S)


def test_what_announces_its_end_is_a_variable_of_the_executor() -> None:
    node = NodeOptions(nats_url="nats://nowhere.invalid:1", data_dir=Path("data"), until_notice="file:/run/end")
    assert node.environment()["EF_UNTIL_NOTICE"] == "file:/run/end"


def test_the_table_has_a_column_of_ends_where_a_node_has_one() -> None:
    assert "UNTIL" not in table(None)
    shown = table(announced(NOW_S + 7_200.0))
    assert "UNTIL" in shown
    assert "(in 2h 00m)" in shown


def test_the_causes_of_a_change_of_gpus_name_the_end() -> None:
    assert "node-1 ends at " in cause_in_words(announced(NOW_S + 60.0), "a")
    assert "node-1 stays" in cause_in_words(announced(None), "a")
    notice = events.NodeEndNoticed(node_id="node-1", incarnation="first-1", until_s=NOW_S + 60.0, at_s=NOW_S)
    assert "node-1 has notice to end at " in cause_in_words(notice, "a")
    assert cause_in_words(replace(notice, until_s=None), "a") == "the notice that node-1 ends was withdrawn"
    drained = events.NodeDrainStarted(node_id="node-1", incarnation="first-1", at_s=NOW_S)
    assert cause_in_words(drained, "a") == "node-1 is drained before its end"
