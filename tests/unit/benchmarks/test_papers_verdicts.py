"""Verdicts follow from claims and measurements alone."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.papers.analogues import RESULTS, read_analogues, recorded_result
from benchmarks.papers.claims import Average, Better, Claim, Contestant, Form, ReadFrom, Setup
from benchmarks.papers.claims_file import read_claims
from benchmarks.papers.live import MEASURES
from benchmarks.papers.report import AnalogueSection, analogue_section, markdown_lines, not_reached
from benchmarks.papers.rows import NONE_KNOWN, read_reasons
from benchmarks.papers.runs import Run, for_bound, for_ours, measured, runs_of
from benchmarks.papers.verdicts import Beside, Measurement, Verdict, verdict
from elasticflow.shared.errors import BadSettings

CLAIM = Claim(
    figure="EF-F1",
    name="elasticflow",
    paper="ElasticFlow",
    section="1",
    title="A figure",
    read_from=ReadFrom.TEXT,
    quantity="deadline_satisfactory_ratio",
    unit="ratio",
    better=Better.HIGHER,
    value=0.8,
    published="",
    tolerance=0.05,
    relative_tolerance=None,
    setup=Setup(traces=("a",), num_gpus_by_trace=(8,)),
    contestant=Contestant(policy="elasticflow-algorithms"),
    also=(),
    own=True,
    form=Form.VALUE,
    against=None,
    needs=(),
    stands_in="",
)
BASELINE = replace(CLAIM, name="edf", own=False, value=0.2)


def found(value: float, *beside: Beside) -> Measurement:
    return Measurement(value=value, least=value, most=value, beside=beside)


def test_a_number_within_the_tolerance_is_reproduced() -> None:
    assert verdict(CLAIM, found(0.76)) is Verdict.REPRODUCED
    assert verdict(CLAIM, found(0.84)) is Verdict.REPRODUCED
    part = replace(CLAIM, tolerance=None, relative_tolerance=0.1)
    assert verdict(part, found(0.73)) is Verdict.REPRODUCED
    assert verdict(part, found(0.71)) is Verdict.DIFFERS


def test_another_published_value_changes_the_verdict() -> None:
    measurement = found(0.8)
    assert verdict(CLAIM, measurement) is Verdict.REPRODUCED
    assert verdict(replace(CLAIM, value=0.9), measurement) is Verdict.DIFFERS
    assert verdict(replace(CLAIM, value=0.7), measurement) is Verdict.BETTER
    assert verdict(replace(CLAIM, value=None), measurement) is Verdict.NO_VALUE
    assert verdict(replace(CLAIM, value=None), None) is Verdict.NOT_RUN


def test_only_the_papers_own_system_can_be_better() -> None:
    assert verdict(CLAIM, found(0.9)) is Verdict.BETTER
    assert verdict(BASELINE, found(0.9)) is Verdict.DIFFERS
    assert verdict(replace(CLAIM, better=Better.LOWER), found(0.9)) is Verdict.DIFFERS
    assert verdict(replace(CLAIM, better=Better.LOWER), found(0.7)) is Verdict.BETTER
    assert verdict(replace(CLAIM, better=Better.NEITHER), found(0.9)) is Verdict.DIFFERS


def test_the_order_holds_if_all_other_claims_are_on_the_same_side() -> None:
    above, below = Beside(published=0.8, measured=0.95), Beside(published=0.8, measured=0.3)
    assert verdict(BASELINE, found(0.4, above)) is Verdict.HOLDS
    assert verdict(BASELINE, found(0.4, above, below)) is Verdict.DIFFERS
    equal = Beside(published=0.22, measured=0.1)  # published as good as equal: no order to hold
    assert verdict(BASELINE, found(0.4, above, equal)) is Verdict.HOLDS


def test_without_a_claim_of_another_published_value_there_is_no_order_to_hold() -> None:
    equal = Beside(published=BASELINE.value or 0.0, measured=0.9)
    assert verdict(BASELINE, found(0.4, equal)) is Verdict.DIFFERS


def test_a_quotient_or_a_reduction_by_less_than_a_hundredth_has_no_direction() -> None:
    times = replace(CLAIM, form=Form.QUOTIENT, value=1.3, against=Contestant(policy="edf"))
    assert verdict(times, found(1.02)) is Verdict.HOLDS
    assert verdict(times, found(1.0004)) is Verdict.DIFFERS
    assert verdict(replace(times, form=Form.REDUCTION, value=0.3), found(0.009)) is Verdict.DIFFERS


def test_a_quotient_holds_on_its_side_of_one_and_a_reduction_by_its_sign() -> None:
    times = replace(CLAIM, form=Form.QUOTIENT, value=2.0, against=Contestant(policy="edf"))
    assert verdict(times, found(1.2)) is Verdict.HOLDS
    assert verdict(times, found(0.9)) is Verdict.DIFFERS
    saved = replace(times, form=Form.REDUCTION, value=-0.08)
    assert verdict(saved, found(-0.2)) is Verdict.HOLDS
    assert verdict(replace(saved, value=0.3), found(-0.2)) is Verdict.DIFFERS


def test_a_stand_in_can_at_most_hold() -> None:
    times = replace(CLAIM, form=Form.QUOTIENT, value=2.0, stands_in="another trace", against=Contestant(policy="edf"))
    assert verdict(times, found(2.0)) is Verdict.HOLDS
    assert verdict(times, found(9.0)) is Verdict.HOLDS
    assert verdict(times, None) is Verdict.NOT_RUN


def test_a_quotient_of_several_traces_is_averaged_as_the_claim_says() -> None:
    setup = Setup(traces=("a", "b"), num_gpus_by_trace=(8, 16))
    times = replace(CLAIM, form=Form.QUOTIENT, against=Contestant(policy="edf"), setup=setup)
    ratios = {
        ("a", "elasticflow-algorithms"): 0.8,
        ("a", "edf"): 0.1,
        ("b", "elasticflow-algorithms"): 0.6,
        ("b", "edf"): 0.3,
    }

    def numbers_of(run: Run) -> dict[str, float | None]:
        assert run.contestant is not None
        return {"deadline_satisfactory_ratio": ratios[run.jobs.trace, run.contestant.policy]}

    def value(average: str) -> float:
        found = measured(replace(times, setup=replace(setup, average=Average(average))), numbers_of)
        assert found is not None
        return found.value

    assert value("mean of ratios") == pytest.approx(5.0)
    assert value("ratio of means") == pytest.approx(3.5)
    ratios["b", "edf"] = 0.0
    assert measured(times, numbers_of) is None


def test_our_policy_and_the_bound_take_the_place_of_the_papers_algorithm() -> None:
    ours, bound = for_ours(CLAIM), for_bound(CLAIM)
    assert ours is not None
    assert bound is not None
    ids = [run.run_id for claim in (CLAIM, ours, bound) for run, _ in runs_of(claim)]
    assert ids == [f"a-8gpus-{name}-reference" for name in ("elasticflow-algorithms", "selective", "bound")]
    assert for_ours(replace(BASELINE, contestant=Contestant(policy="edf"))) is None
    assert runs_of(replace(CLAIM, needs=("GPUs",))) == ()


# --- why measurements differ ---------------------------------------------------------------------------


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
