"""Numbers of papers stand in claims.toml alone: none is written in the code of the benchmarks or of the simulator."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.padding.preempted import preempted_rows
from benchmarks.papers.claims import Claim
from benchmarks.papers.claims_file import published_value, read_claims
from elasticflow.simulator.timing.training_time import MEASURED_MIX_EFFICIENCY

REPOSITORY = Path(__file__).parents[3]
CLAIMS = [claim for figure in read_claims().figures for claim in figure.claims if claim.value is not None]
NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(?![\w.]*\.?\d)(\s?%)?")
BESIDE_A_NAME = re.compile(r"(?<![\w-])(?:ElasticFlow|Amoeba|VirtualFlow|PaddingTorch|[Pp]aper)\b[^0-9]{0,12}\d")
LEAST_DIGITS = 3  # numbers with fewer are too common to be found

# Numbers that equal a published value and are something else, by file.
NO_CLAIMS = {
    ("benchmarks/engine/torchft.py", "1.39"): "version of a package",
    ("benchmarks/heterogeneous/completion_times.py", "1.46"): "price of a P100 per hour",
    ("benchmarks/padding/preempted.py", "1.25"): "our own goal",
    ("benchmarks/scheduling/prices_over_a_day.py", "1.25"): "quotient of two lengths of a window",
    ("simulator/timing/training_time.py", "2.17"): "no result to compare with, but the model's parameter",
}


def significant_digits(text: str) -> int:
    return len(text.replace(".", "").strip("0"))


def spellings(claim: Claim) -> Iterator[str]:
    """The value as code would have it: as a number, as percent, and as "so many times as much"."""
    assert claim.value is not None
    value = abs(claim.value)
    if significant_digits(f"{value:.10g}") >= LEAST_DIGITS:
        yield f"{value:.10g}"
        if claim.unit == "ratio":
            yield f"{100 * value:.10g} %"
            yield f"{1 + value:.10g}"


SPELLED = {text: claim.claim_id for claim in CLAIMS for text in spellings(claim)}


def found_in(text: str) -> Iterator[tuple[str, str]]:
    """Numbers as they are written, and the claim that has them. Powers of two are sizes."""
    for match in NUMBER.finditer(text):
        written, percent = match.groups()
        value = float(written)
        spelled = f"{value:.10g}{' %' if percent else ''}"
        is_size = value.is_integer() and int(value).bit_count() == 1
        if spelled in SPELLED and not is_size:
            yield written, SPELLED[spelled]


def code() -> Iterator[tuple[str, str]]:
    for package in ("benchmarks", "simulator"):
        for file in sorted((REPOSITORY / package).rglob("*.py")):
            yield str(file.relative_to(REPOSITORY)), file.read_text(encoding="utf-8")


def test_no_code_has_a_number_of_a_paper() -> None:
    found = {(file, written): claim for file, text in code() for written, claim in found_in(text)}
    assert {place: claim for place, claim in found.items() if place not in NO_CLAIMS} == {}
    assert NO_CLAIMS.keys() <= found.keys()


def test_no_printed_text_has_a_number_behind_the_name_of_a_paper() -> None:
    found = [(file, text) for file, source in code() for text in printed(source) if BESIDE_A_NAME.search(text)]
    assert found == []


def printed(source: str) -> Iterator[str]:
    """All texts but docstrings, which name sections and figures."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


@pytest.mark.parametrize(
    "text",
    ["up to 29.2 % (VirtualFlow)", "GOAL = 1.88", "1.423 times as fast", "FIRST_S = 3.904", "52055", "(-0.314, 1)"],
)
def test_numbers_of_papers_are_found_as_code_spells_them(text: str) -> None:
    assert list(found_in(text))


@pytest.mark.parametrize("text", ["10.9.0.1", "x1.88", "BATCH_SIZE = 128", "h2 { font-size: 1.15rem; }", "29.2 s"])
def test_other_numbers_are_not_taken_for_them(text: str) -> None:
    assert not list(found_in(text))


def test_a_published_value_is_read_by_the_id_of_its_claim() -> None:
    assert {published_value(claim.claim_id) for claim in CLAIMS} == {claim.value for claim in CLAIMS}
    with pytest.raises(KeyError, match="VF-F0/nothing"):
        published_value("VF-F0/nothing")


def test_a_benchmark_prints_the_published_value_beside_its_own() -> None:
    measured = {"window_s": 4.3, "preempted_s": 20.0, "exclusive_s": 18.0, "least_s": 13.7, "ratio": 20.0 / 18.0}
    (row,) = preempted_rows([measured])
    assert row.beside.endswith(f"paper {published_value('PT-F4/every-43-s'):.2f} x")


def test_the_simulators_mix_efficiency_follows_from_the_claims_that_it_names() -> None:
    """Of the sum of both throughputs: a mix that is so many times as fast as each type alone."""
    over_v100, over_p100 = (1.0 + published_value(f"VF-F13/h3-over-{kind}") for kind in ("v100", "p100"))
    of_sum = 1.0 / (1.0 / over_v100 + 1.0 / over_p100)
    assert of_sum == pytest.approx(MEASURED_MIX_EFFICIENCY, abs=5e-4)
