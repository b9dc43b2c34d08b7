"""Analogues: the file as it is, what its reader rejects, and verdicts that follow from checks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers.analogues import (
    RESULTS,
    Analogue,
    Check,
    Relation,
    check_verdict,
    chosen_analogues,
    combined,
    read_analogues,
    recorded_result,
)
from benchmarks.papers.claims import chosen
from benchmarks.papers.claims_file import read_claims
from benchmarks.papers.live import MEASURES, LiveStore
from benchmarks.papers.report import AnalogueSection, analogue_section, markdown_lines
from benchmarks.papers.verdicts import Verdict
from elasticflow.shared.errors import BadSettings

NUMBERS = combined([{"naive": 70.0, "fixed": 76.0, "saved": 0.2}, {"naive": 72.0, "fixed": 76.0}])
ORDER = Check(name="a", number="naive", relation=Relation.ORDER_OF, beside="fixed", published=(69.0, 75.0))
TEXT = """
[[analogue]]
id = "padding"
figures = ["PT-F4"]
title = "Loads"
stands_in = "sleeping tasks"
measure = "padding"
setup = {num_tasks = 4}
checks = [
  {id = "every-30-s", number = "every-30-s", at_most = "PT-F4/every-30-s"},
]
"""


def read(folder: Path, text: str) -> tuple[Analogue, ...]:
    file = folder / "analogues.toml"
    file.write_text(text)
    return read_analogues(read_claims().figures, MEASURES, file)


def test_each_analogue_names_figures_and_values_that_exist() -> None:
    assert {analogue.analogue_id for analogue in read_analogues(read_claims().figures, MEASURES)} >= {"changes"}


def test_another_published_direction_changes_the_verdict() -> None:
    assert check_verdict(ORDER, NUMBERS) is Verdict.HOLDS
    assert check_verdict(replace(ORDER, published=(75.0, 69.0)), NUMBERS) is Verdict.DIFFERS
    saved = Check(name="b", number="saved", relation=Relation.SIGN_OF, bound=0.38)
    assert check_verdict(saved, NUMBERS) is Verdict.HOLDS
    assert check_verdict(replace(saved, bound=-0.08), NUMBERS) is Verdict.DIFFERS


@pytest.mark.parametrize(
    ("relation", "bound", "expected"),
    [
        (Relation.AT_LEAST, 0.2, Verdict.HOLDS),
        (Relation.AT_LEAST, 0.21, Verdict.DIFFERS),
        (Relation.AT_MOST, 0.2, Verdict.HOLDS),
        (Relation.AT_MOST, 0.19, Verdict.DIFFERS),
    ],
)
def test_a_bound_decides(relation: Relation, bound: float, expected: Verdict) -> None:
    assert check_verdict(Check(name="c", number="saved", relation=relation, bound=bound), NUMBERS) is expected


def test_a_number_of_several_parts_is_their_mean_and_a_missing_one_was_not_run() -> None:
    assert (NUMBERS["naive"].value, NUMBERS["naive"].least, NUMBERS["naive"].most) == (71.0, 70.0, 72.0)
    less = Check(name="d", number="naive", relation=Relation.LESS_THAN, beside="fixed")
    assert check_verdict(less, NUMBERS) is Verdict.HOLDS
    assert check_verdict(replace(less, number="fixed", beside="naive"), NUMBERS) is Verdict.DIFFERS
    assert check_verdict(replace(less, beside="none"), NUMBERS) is Verdict.NOT_RUN


def test_figures_choose_their_analogues() -> None:
    figures = read_claims().figures
    analogues = read_analogues(figures, MEASURES)
    assert [each.analogue_id for each in chosen_analogues(analogues, chosen(figures, ("VF-T1",)))] == ["accuracy"]
    assert chosen_analogues(analogues, chosen(figures, ("EF-F9-64",))) == ()


def test_a_part_of_another_setup_does_not_count_and_the_report_says_what_is_not_run(tmp_path: Path) -> None:
    (analogue,) = read(tmp_path, TEXT)
    store = LiveStore(tmp_path)
    assert store.to_do([analogue]) == [(analogue, 0)]
    result = {"setup": {"num_tasks": 4}, "numbers": {"every-30-s": 1.1}, "load_average": [0.0, 1.0], "wall_s": 3.0}
    store.keep(analogue, 0, result)
    assert store.to_do([analogue]) == []
    text = "\n".join(markdown_lines([analogue_section(analogue, [store.result(analogue, 0)], {})]))
    assert "Analogue: padding" in text
    assert "| 1.1 |  | holds |" in text
    assert "python -m benchmarks.papers --live --only PT-F4" in text
    changed = replace(analogue, setup={"num_tasks": 5})
    assert store.result(changed, 0) is None
    assert "not run: --live" in "\n".join(markdown_lines([analogue_section(changed, [None], {})]))


@pytest.mark.parametrize(
    ("text", "instead", "problem"),
    [
        ("PT-F4/every-30-s", "PT-F4/every-31-s", "no claim 'PT-F4/every-31-s' with a value"),
        ('["PT-F4"]', '["PT-F40"]', "there is no figure 'PT-F40'"),
        ('measure = "padding"', 'measure = "loads"', "measure 'loads' must be one of"),
        ("num_tasks = 4", "tasks = 4", "setup and part give"),
        ('at_most = "PT-F4/every-30-s"', 'at_mots = "PT-F4/every-30-s"', "unknown key at_mots"),
        (', at_most = "PT-F4/every-30-s"', "", "needs one of"),
        ('at_most = "PT-F4/every-30-s"', 'order_of = ["PT-F4/every-30-s", "PT-F4/every-43-s"]', "beside for order_of"),
    ],
)
def test_an_error_names_the_analogue_and_the_key(tmp_path: Path, text: str, instead: str, problem: str) -> None:
    assert text in TEXT
    with pytest.raises(BadSettings) as error:
        read(tmp_path, TEXT.replace(text, instead))
    assert problem in str(error.value)


# --- numbers that other benchmarks have recorded -------------------------------------------------------


RECORDED = [analogue for analogue in read_analogues(read_claims().figures, MEASURES) if analogue.recorded]
BY_ID = {analogue.analogue_id: analogue for analogue in RECORDED}


def shown(analogue: Analogue, folder: Path) -> AnalogueSection:
    return analogue_section(analogue, [recorded_result(analogue, folder)], {})


def verdicts(section: AnalogueSection) -> dict[str, str]:
    return {check.name: section.verdict(check).value for check in section.analogue.checks}


def changed(analogue: Analogue, folder: Path, change: Any) -> Path:
    content = json.loads((RESULTS / analogue.recorded).read_text())
    change(content)
    (folder / analogue.recorded).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("analogue", RECORDED, ids=lambda analogue: analogue.analogue_id)
def test_each_recorded_file_gives_every_number_that_a_check_needs(analogue: Analogue) -> None:
    assert "not run" not in verdicts(shown(analogue, RESULTS)).values()


def test_verdicts_follow_the_file(tmp_path: Path) -> None:
    def exactly_predicted(content: dict[str, Any]) -> None:
        for mix in content["mixed_slots"]["mixes"]:
            mix["predicted_s"] = mix["measured_s"]
            mix["even_s"] = mix["measured_s"]

    analogue = BY_ID["mixed-slots"]
    before, after = shown(analogue, RESULTS), shown(analogue, changed(analogue, tmp_path, exactly_predicted))
    assert (verdicts(before)["prediction"], verdicts(before)["uneven-split"]) == ("differs", "holds")
    assert (verdicts(after)["prediction"], verdicts(after)["uneven-split"]) == ("holds", "differs")
    assert "load average 1.0 before and 2.8 after" in before.conditions


def test_the_best_arrival_rate_of_the_file_counts(tmp_path: Path) -> None:
    def twice_as_fast_at_two_jobs_an_hour(content: dict[str, Any]) -> None:
        runs = content["completion_times"]["completion"]["elastic"]["2"]
        for one, mixed in zip(runs["one type"], runs["mixed"], strict=True):
            mixed["mean_completion_s"] = one["mean_completion_s"] / 2

    analogue = BY_ID["completion-times"]
    before = shown(analogue, RESULTS)
    after = shown(analogue, changed(analogue, tmp_path, twice_as_fast_at_two_jobs_an_hour))
    assert (verdicts(before)["at-best"], verdicts(before)["at-best-with-faster-mixes"]) == ("differs", "holds")
    assert verdicts(after)["at-best"] == "holds"
    assert after.numbers["saved-at-best"].value == pytest.approx(0.5)
    assert after.numbers["saved-at-8"] == before.numbers["saved-at-8"]


def test_void_runs_say_nothing_about_the_simulator(tmp_path: Path) -> None:
    def void(content: dict[str, Any]) -> None:
        first, *others = content["fidelity"]["runs"]
        first["simulated"]["mean"], first["placements"]["mean"] = 0.02, 0.04
        for run in others:
            run["void"] = True

    analogue = BY_ID["simulator-fidelity"]
    found = shown(analogue, changed(analogue, tmp_path, void))
    assert verdicts(found) == {"own-decisions": "holds", "recorded-placements": "differs"}


def test_a_number_that_the_file_lacks_is_not_run(tmp_path: Path) -> None:
    analogue = BY_ID["mixed-slots"]
    folder = changed(analogue, tmp_path, lambda content: content["mixed_slots"].update(sums=[]))
    found = verdicts(shown(analogue, folder))
    assert (found["over-the-fast"], found["uneven-split"]) == ("not run", "holds")


def test_a_missing_file_or_part_is_named_with_the_command_that_writes_it(tmp_path: Path) -> None:
    analogue = BY_ID["useful-shares"]
    missing = "not run: padding_shares.json is missing; python -m benchmarks.padding --only useful_shares"
    section = shown(analogue, tmp_path)
    assert set(verdicts(section).values()) == {"not run"}
    assert missing in section.conditions
    assert missing in "\n".join(markdown_lines([section]))
    (tmp_path / analogue.recorded).write_text("{}")
    assert missing in shown(analogue, tmp_path).conditions


@pytest.mark.parametrize("text", ["", '{"useful_shares": {"groups": []}}', '{"useful_shares": 1}'])
def test_a_file_of_another_form_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    analogue = BY_ID["useful-shares"]
    (tmp_path / analogue.recorded).write_text(text)
    with pytest.raises(BadSettings, match=analogue.recorded):
        recorded_result(analogue, tmp_path)


def test_a_recorded_analogue_has_no_setup_and_needs_no_live_run() -> None:
    analogue = BY_ID["runners"]
    assert (analogue.setup, analogue.command) == ({}, "python -m benchmarks.papers --only PT-T1 --out report-PT-T1")
