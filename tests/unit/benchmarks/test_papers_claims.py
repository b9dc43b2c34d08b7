"""The claims of papers: the file as it is, and what its reader rejects."""

from pathlib import Path

import pytest

from benchmarks.papers.claims import Claims, chosen
from benchmarks.papers.claims_file import read_claims
from elasticflow.shared.errors import BadSettings

GENERATOR = """
[generator]
short_share = 0.8
short_exponents = [1.0, 2.5]
long_exponents = [2.5, 4.0]
num_gpus_weights = {1 = 0.9, 2 = 0.1}
tightness = [0.5, 1.5]
pairs = [["resnet50", 64]]
"""
FIGURE = """
[[figure]]
id = "EF-F1a"
paper = "ElasticFlow"
section = "1"
title = "A figure"
read_from = "text"
quantity = "deadline_satisfactory_ratio"
unit = "ratio"
better = "higher"
tolerance = 0.1
setup = {traces = ["a"], num_gpus = 8}
claims = [
  {id = "edf", policy = "edf", value = 0.5},
]
"""


def read(folder: Path, text: str) -> Claims:
    file = folder / "claims.toml"
    file.write_text(text)
    return read_claims(file)


def test_all_claims_of_four_papers_can_run_or_say_what_is_missing() -> None:
    figures = read_claims().figures
    assert {figure.paper for figure in figures} == {"ElasticFlow", "Amoeba", "VirtualFlow", "PaddingTorch"}
    claims = [claim for figure in figures for claim in figure.claims]
    assert all(claim.needs or (claim.setup and claim.value is not None) for claim in claims)
    unsaid = [each.figure_id for each in figures if not each.published_setup and not any(c.setup for c in each.claims)]
    assert unsaid == [], "figures without a setup"


def test_a_claim_takes_what_its_figure_says_and_overrides_it(tmp_path: Path) -> None:
    own = 'value = 0.5, tolerance = 0.2, setup = {num_gpus = 16}, overhead = "none"}'
    (figure,) = read(tmp_path, GENERATOR + FIGURE.replace("value = 0.5}", own)).figures
    (claim,) = figure.claims
    assert claim.claim_id == "EF-F1a/edf"
    assert claim.setup is not None
    assert (claim.setup.traces, claim.setup.num_gpus_by_trace) == (("a",), (16,))
    assert claim.contestant is not None
    assert (claim.contestant.policy, claim.contestant.overhead, claim.within) == ("edf", "none", 0.2)


@pytest.mark.parametrize(
    ("text", "instead", "problem"),
    [
        ('unit = "ratio"', 'unit = "ratio"\nvalu = 1', "figure 'EF-F1a': unknown key valu"),
        ("value = 0.5}", "value = 0.5, overheat = 1}", "claim 'EF-F1a/edf': unknown key overheat"),
        ("num_gpus = 8}", "num_gpus = 8, gpus = 1}", "setup: unknown key gpus"),
        ("value = 0.5}", 'value = 0.5}, {id = "edf", policy = "edf", value = 1.0}', "EF-F1a/edf is there twice"),
        (", value = 0.5}", "}", "needs a value"),
        ("value = 0.5}", 'value = "much"}', "value: must be a number, not 'much'"),
        ('policy = "edf"', 'policy = "efd"', "policy 'efd' must be one of"),
        ("tolerance = 0.1", "tolerance = -0.1", "tolerance must be more than 0"),
        ("tolerance = 0.1", "", "needs one of tolerance and relative_tolerance"),
        ('read_from = "text"', 'read_from = "memory"', "read_from: must be one of"),
        ("deadline_satisfactory_ratio", "deadline_ratio", "quantity 'deadline_ratio' must be one of"),
        ('policy = "edf", ', "", "needs a policy"),
        ("value = 0.5}", 'value = 0.5, form = "quotient"}', "do not fit"),
        ('traces = ["a"]', 'traces = ["a", "b"]', "several traces need an average"),
        ("num_gpus = 8", "num_gpus = 0", "whole number of at least 1"),
        ("claims = [", "claims = [[", "claims.toml:"),
    ],
)
def test_an_error_names_the_claim_and_the_key(tmp_path: Path, text: str, instead: str, problem: str) -> None:
    assert text in FIGURE
    with pytest.raises(BadSettings) as error:
        read(tmp_path, GENERATOR + FIGURE.replace(text, instead))
    assert problem in str(error.value)


def test_a_figure_is_there_once_and_the_generator_is_complete(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="figure EF-F1a is there twice"):
        read(tmp_path, GENERATOR + FIGURE + FIGURE)
    with pytest.raises(BadSettings, match="generator: has no short_share"):
        read(tmp_path, GENERATOR.replace("short_share = 0.8", "") + FIGURE)


@pytest.mark.parametrize(("name", "count"), [("EF-F8b-01", 1), ("f8b-01", 1), ("F8b", 15), ("EF-F9", 3), ("F9", 4)])
def test_figures_are_chosen_by_their_number(name: str, count: int) -> None:
    assert len(chosen(read_claims().figures, (name,))) == count


def test_an_unknown_figure_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(BadSettings, match="no figure is named 'F99'; there are EF-F2a"):
        chosen(read_claims().figures, ("F99",))
