"""Analogues that read what other benchmarks have measured: verdicts follow the files, and a missing one is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers.analogue_rows import AnalogueSection, analogue_section, markdown_lines
from benchmarks.papers.analogues import Analogue
from benchmarks.papers.analogues_file import read_analogues
from benchmarks.papers.claims_file import read_claims
from benchmarks.papers.live.measures import MEASURES
from benchmarks.papers.recorded import RESULTS, recorded_result
from elasticflow.shared.errors import BadSettings

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
