"""Every recorded row that differs from its paper has a reason, and the reason says how it was checked."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.papers.analogue_rows import AnalogueSection, analogue_section, markdown_lines, not_reached
from benchmarks.papers.analogues_file import read_analogues
from benchmarks.papers.claims_file import read_claims
from benchmarks.papers.live.measures import MEASURES
from benchmarks.papers.reasons import NONE_KNOWN, read_reasons
from benchmarks.papers.recorded import RESULTS, recorded_result
from elasticflow.shared.errors import BadSettings

FIGURES = read_claims().figures
ANALOGUES = read_analogues(FIGURES, MEASURES)
REASONS = read_reasons(FIGURES, ANALOGUES)
HEADING = re.compile(r"^## ([A-Z]{2}-\S+): ")
DIFFERING = re.compile(r"^\| (\S+) \|.*\| differs \|")


def recorded_sections() -> Iterator[AnalogueSection]:
    for analogue in ANALOGUES:
        if analogue.recorded:
            yield analogue_section(analogue, [recorded_result(analogue, RESULTS)], REASONS)


def differing_rows() -> Iterator[str]:
    """Of the recorded results: of simulated rows, of live analogues, and of analogues that read other benchmarks."""
    figure = ""
    for line in (RESULTS / "papers.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = HEADING.match(line)
            figure = heading[1] if heading else ""
        elif figure and (row := DIFFERING.match(line)):
            yield f"{figure}/{row[1]}"
    live = json.loads((RESULTS / "papers_live.json").read_text(encoding="utf-8"))
    for analogue in live["analogues"]:
        named = analogue["analogue_id"]
        yield from (f"{named}/{check}" for check, said in analogue["verdicts"].items() if said == "differs")
    for section in recorded_sections():
        yield from (section.analogue.check_id(check) for check in section.differing())


def test_every_recorded_row_that_differs_has_a_reason() -> None:
    rows = set(differing_rows())
    assert {"EF-F10-met/gandiva", "changes/saved-1-to-2", "mixed-slots/prediction"} <= rows
    assert {row for row in rows if row not in REASONS and row.partition("/")[0] not in REASONS} == set()


def test_the_report_says_the_reason_of_each_check_that_differs() -> None:
    section = next(section for section in recorded_sections() if section.analogue.analogue_id == "mixed-slots")
    reason = REASONS["mixed-slots/prediction"]
    assert "Checked: " in reason
    assert reason in "\n".join(markdown_lines([section]))
    assert reason in "\n".join(not_reached([section]))
    unexplained = analogue_section(section.analogue, section.results, {})
    assert NONE_KNOWN in "\n".join(not_reached([unexplained]))


@pytest.mark.parametrize(
    ("reason", "problem"),
    [
        ('rows = ["EF-F0"]\ntext = "so"\nchecked = "by a run."', "no figure, claim or check 'EF-F0'"),
        ('rows = ["padding/every-0-s"]\ntext = "so"\nchecked = "by a run."', "claim or check 'padding/every-0-s'"),
        ('rows = ["EF-F2b", "EF-F2b"]\ntext = "so"\nchecked = "by a run."', "EF-F2b has two reasons"),
        ('rows = ["EF-F2b"]\ntext = "so"', "reason of EF-F2b: checked must be a text"),
        ('rows = "EF-F2b"\ntext = "so"\nchecked = "by a run."', "rows: must be a list of texts"),
    ],
)
def test_a_reason_names_rows_that_exist_and_how_it_was_checked(tmp_path: Path, reason: str, problem: str) -> None:
    file = tmp_path / "reasons.toml"
    file.write_text(f"[[reason]]\n{reason}\n")
    with pytest.raises(BadSettings, match=problem):
        read_reasons(FIGURES, ANALOGUES, file)
