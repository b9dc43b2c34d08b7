"""Ratios to peers, their comparison with recorded ones, and what the command says. Nothing is measured."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from benchmarks.regressions import __main__ as command
from benchmarks.regressions import pages
from benchmarks.regressions.measurements import PARTS, PartName, reference_work
from benchmarks.regressions.ratios import (
    Beside,
    Compared,
    Ratio,
    Recorded,
    Verdict,
    compared,
    lower,
    ratios_of,
    read_recorded,
    record,
)

APP = typer.Typer()
APP.command()(command.main)


def ratio(value: float) -> Ratio:
    return Ratio.of([Beside("what", value, 1.0)])


def test_the_ratio_is_the_median_of_the_repeats_and_not_that_of_the_medians() -> None:
    repeats = [Beside("quote", 2.0, 1.0), Beside("request", 5.0, 1.0), Beside("quote", 9.0, 3.0)]
    found = ratios_of([*repeats, Beside("quote", 40.0, 10.0)])
    assert list(found) == ["quote", "request"]
    assert found["quote"] == Ratio(ratio=3.0, least=2.0, greatest=4.0, ours_s=9.0, peer_s=3.0)


@pytest.mark.parametrize(
    ("measured", "recorded", "verdict", "fails"),
    [
        (1.19, 1.0, Verdict.AS_RECORDED, False),
        (1.21, 1.0, Verdict.WORSE, True),
        (1.0, 1.19, Verdict.AS_RECORDED, False),
        (1.0, 1.21, Verdict.BETTER, False),
        (1.0, None, Verdict.NOT_RECORDED, False),
        (None, 1.0, Verdict.NOT_MEASURED, True),
    ],
)
def test_a_fifth_more_is_worse(measured: float | None, recorded: float | None, verdict: Verdict, fails: bool) -> None:
    each = Compared("what", *(None if value is None else ratio(value) for value in (measured, recorded)))
    assert (each.verdict, each.verdict.fails) == (verdict, fails)


def test_what_only_the_record_has_is_compared_too() -> None:
    found = list(compared({"quote": ratio(1.0)}, {"request": ratio(1.0)}))
    assert [(each.what, each.verdict) for each in found] == [
        ("quote", Verdict.NOT_RECORDED),
        ("request", Verdict.NOT_MEASURED),
    ]


def test_the_lower_of_two_runs_counts_for_each_ratio() -> None:
    first, second = {"a": ratio(1.0), "b": ratio(2.0)}, {"a": ratio(3.0), "b": ratio(1.5)}
    assert {what: each.ratio for what, each in lower(first, second).items()} == {"a": 1.0, "b": 1.5}


def test_a_record_replaces_its_parts_and_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    assert read_recorded(file) == {}
    old, new = (
        Recorded(date="2026-11-28", commit=commit, machine="2 cores", ratios={"quote": ratio(value)})
        for commit, value in (("cb1556e4", 1.0), ("0123abcd", 2.0))
    )
    record(file, {"decisions": old, "resize": old})
    record(file, {"resize": new})
    assert read_recorded(file) == {"decisions": old, "resize": new}


def test_the_reference_work_has_not_changed() -> None:
    assert reference_work() == 701_445.0, "recorded ratios are to this work"


# --- the command ---------------------------------------------------------------------------------------


class Machine:
    """Each run of a part takes the next of these ratios, the last one without end."""

    def __init__(self) -> None:
        self.ratios = [1.0]
        self.runs: list[tuple[PartName, int]] = []

    def run(self, name: PartName, repeats: int) -> dict[str, Ratio]:
        self.runs.append((name, repeats))
        value = self.ratios.pop(0) if len(self.ratios) > 1 else self.ratios[0]
        return {"quote": ratio(value)}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """In a folder without a history and without recorded ratios."""
    machine = Machine()
    monkeypatch.setattr(command, "_in_new_process", machine.run)
    monkeypatch.setattr(command, "RATIOS", tmp_path / "ratios.json")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return machine


def run(*arguments: str) -> Result:
    return CliRunner().invoke(APP, arguments)


def test_without_a_record_nothing_fails_and_the_command_says_how_to_record(machine: Machine) -> None:
    shown = run()
    assert shown.exit_code == 0
    assert command.NOTHING_RECORDED in shown.output
    assert command.NO_HISTORY in shown.output
    assert machine.runs == [(name, PARTS[name].repeats) for name in PartName]


def test_what_is_worse_in_two_runs_fails(machine: Machine, tmp_path: Path) -> None:
    assert run("--record", "--only", "decisions").exit_code == 0
    machine.ratios = [2.0, 1.5]
    machine.runs.clear()
    out = tmp_path / "out.json"
    shown = run("--only", "decisions", "--json", "--out", str(out))
    assert shown.exit_code == 1
    assert machine.runs == [(PartName.DECISIONS, PARTS[PartName.DECISIONS].repeats)] * 2
    (part,) = json.loads(out.read_text())["ratios"].values()
    assert part["quote"]["verdict"] == "worse"
    assert (part["quote"]["ratio"], part["quote"]["recorded"]) == (1.5, 1.0)


def test_what_is_worse_in_one_run_only_does_not_fail(machine: Machine) -> None:
    run("--record", "--only", "decisions")
    machine.ratios = [2.0, 1.1]
    shown = run("--only", "decisions")
    assert shown.exit_code == 0
    assert "+10%" in shown.output


def test_what_is_worse_or_no_longer_measured_is_red_and_what_is_better_is_green() -> None:
    values = {"slow": (2.0, 1.0), "same": (1.0, 1.0), "fast": (1.0, 2.0), "new": (1.0, None), "gone": (None, 1.0)}
    of_part = [
        Compared(what, *(None if value is None else ratio(value) for value in pair)) for what, pair in values.items()
    ]
    drawn = command.ratios_table({PartName.RESIZE: of_part})
    assert [row.style for row in drawn.rows] == ["bold red", None, "green", None, "bold red"]


def test_a_quick_run_runs_once_and_cannot_be_recorded(machine: Machine) -> None:
    run("--record", "--only", "decisions")
    machine.ratios = [2.0]
    machine.runs.clear()
    assert run("--quick", "--only", "decisions").exit_code == 1
    assert machine.runs == [(PartName.DECISIONS, 1)]
    assert run("--quick", "--record").exit_code == 2


def test_a_record_names_where_it_was_measured(machine: Machine) -> None:
    run("--record", "--only", "resize")
    (recorded,) = read_recorded(command.RATIOS).values()
    assert recorded.commit == "unknown"
    assert "cores" in recorded.machine
    assert "recorded: resize on " in run("--only", "resize").output


def test_a_list_has_each_part_and_measures_nothing(machine: Machine) -> None:
    shown = run("--list")
    assert all(f"{name} " in shown.output for name in PartName)
    assert machine.runs == []
