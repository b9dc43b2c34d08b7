"""Rows for traces in the folder of --traces that no claim names: those of Figure 8(b), without a published value."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.papers.claims import Claim, Figure, Setup
from benchmarks.papers.execution import csv_files

LIKE = "EF-F8b-01"  # its policies and its quantity


def further_figures(figures: Sequence[Figure], traces: Path | None, num_gpus: int) -> tuple[Figure, ...]:
    """A figure for each such file, by name. traces: None without a folder. num_gpus: of the pool of each."""
    claims = [claim for figure in figures for claim in figure.claims]
    named = {trace for claim in claims if claim.setup is not None for trace in claim.setup.traces}
    files = csv_files(traces) if traces is not None else []
    like = next(figure for figure in figures if figure.figure_id == LIKE)
    return tuple(_figure(like, file.stem, num_gpus) for file in files if file.stem not in named)


def _figure(like: Figure, trace: str, num_gpus: int) -> Figure:
    title = f"Deadlines met in trace {trace} on {num_gpus} GPUs"
    figure_id, setup = f"trace-{trace}", Setup(traces=(trace,), num_gpus_by_trace=(num_gpus,))

    def without_value(claim: Claim) -> Claim:
        return replace(claim, figure=figure_id, paper="", title=title, value=None, setup=setup)

    claims = tuple(map(without_value, like.claims))
    return replace(like, figure_id=figure_id, paper="", section="", title=title, claims=claims)
