"""`eflow report` of an exported ledger: table, CSV, JSON and prices."""

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticflow.cli.app import app
from elasticflow.cli.report import prices_of
from testbed.histories import NOW_S
from testbed.page_ledger import page_history, write_export


@pytest.fixture
def export(tmp_path: Path) -> str:
    file = tmp_path / "run.ledger"
    write_export(page_history(), file)
    return str(file)


def report(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *arguments], prog_name="eflow")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


UNTIL = "2027-01-15T08:01:00+00:00"  # of the recorded ledger, a minute after its begin


def test_the_table_names_each_tenant(export: str) -> None:
    status, shown = report("--file", export, "--until", UNTIL)
    assert status == 0, shown
    _, head, row = shown.splitlines()
    assert head.split() == [
        *("TENANT", "ADMITTED", "REJECTED", "PROMISED"),
        *("KEPT", "BROKEN", "FAILED", "CANCELLED", "LIVE", "GPU-HOURS"),
    ]
    assert row.split()[:9] == ["lab", "4", "1", "4", "1", "0", "1", "0", "2"]
    assert float(row.split()[9]) > 0.0
    recent = report("--file", export, "--since", "10s")[1].splitlines()
    assert recent[1].split()[4] == "EARLIER", "promises that were live before the period"


def test_a_price_adds_a_column(export: str) -> None:
    status, shown = report("--file", export, "--until", UNTIL, "--price", "3600")
    assert status == 0, shown
    assert shown.splitlines()[1].split()[-1] == "COST"
    status, shown = report("--file", export, "--until", UNTIL, "--price", "V100=2.48")
    assert status == 2
    assert "no price for GPUs without a type" in " ".join(shown.replace("│", " ").split())


def test_csv_and_json_have_the_same_numbers(export: str) -> None:
    options = ("--file", export, "--until", UNTIL, "--price", "2.5")
    (row,) = csv.DictReader(io.StringIO(report(*options, "--csv")[1]))
    value = json.loads(report(*options, "--json")[1])
    (tenant,) = value["tenants"]
    assert row["tenant"] == tenant["tenant"] == "lab"
    assert float(row["gpu_hours"]) == pytest.approx(tenant["gpu_hours"], abs=1e-4)
    assert float(row["cost"]) == pytest.approx(2.5 * tenant["gpu_hours"], abs=0.01)
    assert row["gpu_hours_untyped"] == row["gpu_hours"]
    assert value["total"]["num_admitted"] == int(row["admitted"]) == 4


def test_the_end_of_an_export_ends_the_period(export: str) -> None:
    whole = json.loads(report("--file", export, "--json")[1])
    later = json.loads(report("--file", export, "--until", "2100-01-01", "--json")[1])
    assert whole == later
    assert whole["until_s"] == NOW_S + 58.0, "the last message"
    recent = json.loads(report("--file", export, "--since", "10s", "--json")[1])
    assert recent["since_s"] == NOW_S + 48.0


def test_a_period_without_jobs_is_said(export: str) -> None:
    assert report("--file", export, "--until", "2026-01-01") == (0, "no job in this period\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--since", "soon"), "--since"),
        (("--until", "soon"), "--until"),
        (("--since", "1d", "--until", "2d"), "the period ends before it begins"),
        (("--price", "V100"), "TYPE=DOLLARS"),
        (("--price", "V100=1,V100=2"), "each type once"),
        (("--csv", "--json"), "--csv"),
    ],
)
def test_a_wrong_option_is_a_usage_error(export: str, options: tuple[str, ...], said: str) -> None:
    status, shown = report("--file", export, *options)
    assert status == 2
    assert said in " ".join(shown.replace("│", " ").split())


def test_prices_are_by_type_and_one_may_be_for_all_others() -> None:
    assert prices_of("V100=2.48, P100=1.46,1") == {"V100": 2.48, "P100": 1.46, "": 1.0}
