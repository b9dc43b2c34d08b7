"""Traces that no paper has: each file of the folder gets the rows of Figure 8(b), without a published value."""

from pathlib import Path

from benchmarks.papers.claims import Figure, chosen
from benchmarks.papers.claims_file import read_claims
from benchmarks.papers.execution import Inputs
from benchmarks.papers.further_traces import LIKE, further_figures
from benchmarks.papers.report import markdown
from benchmarks.papers.rows import sections
from benchmarks.papers.runs import Run, all_runs
from benchmarks.papers.verdicts import Verdict

CLAIMS = read_claims()


def figures_of(folder: Path, *names: str) -> tuple[Figure, ...]:
    for name in names:
        (folder / f"{name}.csv").write_text("a trace")
    return further_figures(CLAIMS.figures, folder, num_gpus=64)


def test_files_that_no_claim_names_have_rows_of_their_own(tmp_path: Path) -> None:
    june, may = figures_of(tmp_path, "may", "june", "itp_cluster01")
    assert (june.figure_id, may.figure_id) == ("trace-june", "trace-may")
    like = next(figure for figure in CLAIMS.figures if figure.figure_id == LIKE)
    assert [(claim.name, claim.contestant) for claim in june.claims] == [
        (claim.name, claim.contestant) for claim in like.claims
    ]
    runs = all_runs(iter(june.claims))
    assert {(run.jobs.trace, run.num_gpus) for run in runs} == {("june", 64)}
    assert "bound" in {run.contestant.policy for run in runs if run.contestant is not None}
    assert chosen((*CLAIMS.figures, june, may), ("trace-june",)) == (june,)


def test_a_folder_of_published_traces_has_none_and_so_has_no_folder(tmp_path: Path) -> None:
    assert figures_of(tmp_path, "itp_195job", "philly_103959") == ()
    assert further_figures(CLAIMS.figures, None, num_gpus=64) == ()


def test_the_rows_are_measured_and_not_judged(tmp_path: Path) -> None:
    def numbers_of(run: Run) -> dict[str, float | None]:
        return {"deadline_satisfactory_ratio": 0.75 if run.contestant and run.contestant.policy == "selective" else 0.5}

    figures = figures_of(tmp_path, "june")
    shown = sections(figures, Inputs(tmp_path, None, CLAIMS.generator), numbers_of, {})
    assert {row.verdict for section in shown for row in section.rows} == {Verdict.NO_VALUE}
    text = markdown(shown, (), {})
    assert "No paper has this trace" in text
    row = "| elasticflow | no number | elasticflow-algorithms | 0.5 |  | 0.75 | 0.5 | no published value |"
    assert row in text


def test_jobs_that_are_left_out_are_said(tmp_path: Path) -> None:
    def numbers_of(run: Run) -> dict[str, float | None]:
        return {"deadline_satisfactory_ratio": 0.5, "jobs": 37, "skipped": 158}

    tables = Inputs(tmp_path, tmp_path, CLAIMS.generator)
    (june,) = sections(figures_of(tmp_path, "june"), tables, numbers_of, {})
    said = "158 of 195 jobs of june are left out: wrong rows, or models without a table"
    assert f"- {said}" in markdown((june,), (), {})
    published = chosen(CLAIMS.figures, ("F8b-01",))
    (figure,) = sections(published, tables, numbers_of, {})
    assert {row.claim.stands_in for row in figure.rows} == {said.replace("june", "itp_cluster01")}
    assert Verdict.REPRODUCED not in {row.verdict for row in figure.rows}
