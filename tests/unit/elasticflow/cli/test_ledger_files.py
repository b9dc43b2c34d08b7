"""Every command that reads a ledger reads an exported one in one way: `--file`."""

import json

import pytest
from typer.testing import CliRunner

from elasticflow.cli.app import app
from testbed.page_ledger import page_history, write_export


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("ledger") / "run.ledger"
    write_export(page_history(), file)
    return str(file)


def eflow(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), prog_name="eflow")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("command", "key"),
    [("jobs", "job_id"), ("nodes", "node_id"), ("loads", "load_id"), ("events", "sequence"), ("report", "tenants")],
)
def test_commands_without_a_job_read_the_file(command: str, key: str, export: str) -> None:
    everything = ("--all",) if command in ("jobs", "nodes", "loads") else ()
    status, shown = eflow(command, "--file", export, "--json", *everything)
    value = json.loads(shown)
    assert status == 0
    assert value if isinstance(value, dict) else all(key in row for row in value)
    assert value or command == "loads"


def test_the_jobs_and_histories_of_a_file_are_those_of_its_end(export: str) -> None:
    listed = json.loads(eflow("jobs", "--all", "--file", export, "--json")[1])
    last = json.loads(eflow("events", "--file", export, "--json")[1])[-1]["sequence"]
    assert listed
    for row in listed:
        status, shown = eflow("explain", row["job_id"], "--file", export, "--json")
        assert status == 0
        assert json.loads(shown)[-1]["sequence"] <= last
    status, shown = eflow("explain", listed[0]["job_id"] + "x", "--file", export)
    assert (status, f"did you mean {listed[0]['job_id']}" in shown) == (1, True)


def test_events_of_a_file_begin_where_they_are_asked_to(export: str) -> None:
    rows = json.loads(eflow("events", "--file", export, "--from", "5", "--json")[1])
    assert min(row["sequence"] for row in rows) == 5
    status, shown = eflow("events", "--file", export, "--follow")
    assert (status, "a file gets no new messages" in " ".join(shown.replace("│", "").split())) == (2, True)


@pytest.mark.parametrize("command", ["jobs", "nodes", "loads", "events", "explain", "report", "replay", "ui"])
def test_each_of_them_lists_the_option(command: str) -> None:
    assert "--file" in eflow(command, "--help")[1]
