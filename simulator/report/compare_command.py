"""`simulate compare`: traces, cluster sizes and policies in; one page with the paper's figures out."""

import base64
import csv
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.library_imports import INTERRUPTED
from elasticflow.simulator.baselines.policy_catalogue import OURS, POLICY_NAMES, policies_named
from elasticflow.simulator.command_inputs import cluster_of, make_folder, note, reporting_errors, workload_of
from elasticflow.simulator.report.figures import Cell, NotRun, RunMatrix, Runner, Section
from elasticflow.simulator.timing.overhead import CHOICES as OVERHEADS
from elasticflow.simulator.timing.overhead import overhead_model
from elasticflow.simulator.trace.plots import require_matplotlib
from elasticflow.simulator.trace.simulated_run import Outcome
from elasticflow.simulator.workload.workload import ClusterShape

if TYPE_CHECKING:
    from elasticflow.simulator.bound import Bound
    from elasticflow.simulator.report.figures import Section


def compare(
    trace: Annotated[list[str], typer.Option(metavar="FILE", help="A trace or a bundled name; repeat it for more.")],
    throughputs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of <model>.csv throughput tables.", show_default="bundled"),
    ] = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Machines; repeat it for more sizes. [default: 4]"),
    ] = None,
    pool: Annotated[
        str, typer.Option(metavar="TYPES", help="Instead: GPUs of several types, for example 4xV100,8xP100,16xK80.")
    ] = "",
    gpus_per_node: Annotated[int, typer.Option(metavar="K", help="GPUs of each machine.")] = 8,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The others are compared with the first. Default: all that can run."),
    ] = None,
    overhead: Annotated[str, typer.Option(metavar="MODEL", help=f"Cost of a resize: {OVERHEADS}.")] = "reference",
    bound: Annotated[
        bool, typer.Option("--bound", help="Draw also the most deadlines that any scheduler could meet.")
    ] = False,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Number of concurrent simulations.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Write report.html and numbers.csv there.")] = Path("report"),
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip bad rows, and list them.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed for what a raw trace leaves open.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report and all numbers as one JSON object.")
    ] = False,
) -> None:
    """Compare policies on traces and cluster sizes: figures 7 to 11 of the paper.

    Baselines know no GPU types: on a pool of several, only selective and
    first-come run. Ctrl-C leaves a report of the completed runs, marked partial
    (exit code 130).

    \b
    Examples:
      eflow simulate compare --trace small --nodes 1 --nodes 2 --out report/
      eflow simulate compare --trace small --trace bursty --policy selective \\
        --policy edf --policy gandiva --bound
      eflow simulate compare --trace small --policy selective --policy edf --json
    """
    with reporting_errors():
        require_matplotlib()
        clusters = _clusters(nodes or [], gpus_per_node, pool)
        gpu_types = clusters[0].gpu_types
        matrix = RunMatrix(
            workloads=tuple(
                workload_of(one, throughputs, gpu_types, skip_bad=skip_bad, seed=seed) for one in dict.fromkeys(trace)
            ),
            clusters=clusters,
            policies=tuple(dict.fromkeys(policy or (POLICY_NAMES if len(gpu_types) == 1 else OURS))),
            overhead=overhead,
        )
        _check(matrix)
        make_folder(out)
        _write(matrix, out, workers=workers, with_bound=bound, as_json=as_json)


def _clusters(nodes: list[int], gpus_per_node: int, pool: str) -> tuple[ClusterShape, ...]:
    """One for each number of nodes, or that of the pool."""
    return tuple(cluster_of(count, gpus_per_node, pool) for count in dict.fromkeys(nodes or [None]))


def _check(matrix: RunMatrix) -> None:
    """Reject wrong names, and policies that cannot run on the clusters, before the first run."""
    names = [workload.name for workload in matrix.workloads]
    if len(set(names)) < len(names):
        raise BadSettings((f"two traces have the same name: {', '.join(sorted(names))}; rename a file",))
    for policy in matrix.policies:
        policies_named(policy)
    overhead_model(matrix.overhead, matrix.clusters[0].num_gpus)
    matrix.runs()


def _write(matrix: RunMatrix, folder: Path, *, workers: int, with_bound: bool, as_json: bool) -> None:

    console, bounds = Console(stderr=True), dict[tuple[str, int], "Bound"]()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("simulating", total=None)

        def done(outcome: Outcome) -> None:
            run = outcome.run
            bar.update(task, advance=1, description=f"{run.workload.name}: {run.policy}")

        runner = Runner(workers=workers, done=done)
        try:
            drawn = _drawn(matrix, runner, bounds, with_bound=with_bound)
        except KeyboardInterrupt:
            runner.over = True
            drawn = _drawn_so_far(matrix, runner, bounds)
    if not runner.outcomes:
        with suppress(OSError):  # it has other files
            folder.rmdir()
        if as_json:
            print(json.dumps(as_object([], [], matrix.overhead, partial=True)), flush=True)
        note("interrupted before the first run had ended: nothing to report")
        raise typer.Exit(INTERRUPTED)
    title = "Schedulers compared"
    preface = f"Overhead model: {matrix.overhead}. All numbers of all runs are in numbers.csv."
    if runner.over:
        title += " (partial)"
        preface += f" Interrupted after {len(runner.outcomes)} runs: figures that need more runs are missing."
    runs = [
        outcome.numbers(bounds.get((outcome.run.workload.name, outcome.run.cluster.num_gpus)))
        for outcome in runner.outcomes.values()
    ]
    write_page(folder / "report.html", title, preface, drawn)
    write_numbers(folder / "numbers.csv", runs)
    if as_json:
        print(json.dumps(as_object(drawn, runs, matrix.overhead, partial=runner.over)), flush=True)
    else:
        print(folder / "report.html")
    if runner.over:
        note(f"interrupted: the report covers the first {len(runner.outcomes)} runs")
        raise typer.Exit(INTERRUPTED)


def _drawn(
    matrix: RunMatrix, runner: Runner, bounds: "dict[tuple[str, int], Bound]", *, with_bound: bool
) -> "list[Section]":
    """All figures. bounds: filled if with_bound."""
    from elasticflow.simulator.bound import clairvoyant_bound
    from elasticflow.simulator.report.figures import sections

    runner(matrix.runs())
    for workload, cluster in product(matrix.workloads, matrix.clusters) if with_bound else ():
        cost = overhead_model(matrix.overhead, cluster.num_gpus).least(workload.jobs)
        bounds[workload.name, cluster.num_gpus] = clairvoyant_bound(workload, cluster.num_gpus_by_type, cost)
    return list(sections(matrix, runner, bounds))


def _drawn_so_far(matrix: RunMatrix, runner: Runner, bounds: "dict[tuple[str, int], Bound]") -> "list[Section]":
    """The figures of the completed runs; those that need more runs are left out."""
    from elasticflow.simulator.report.figures import sections

    drawn, part = list["Section"](), matrix.first(runner.num_done(matrix.runs()))
    with suppress(NotRun):
        for section in sections(part, runner, bounds) if part is not None else ():
            drawn.append(section)
    return drawn


# --- page ----------------------------------------------------------------------------------------------
# The report: sections as one HTML page and the numbers of all runs as CSV, or both as one object.

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
img { max-width: 100%; } p { color: #555; }
table { border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto; }
th, td { padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
"""


def write_page(file: Path, title: str, preface: str, sections: Iterable[Section]) -> None:
    """HTML; title and preface: plain text."""
    body = "\n".join(_section(section) for section in sections)
    file.write_text(
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style></head>\n<body>\n<h1>{html.escape(title)}</h1>\n<p>{html.escape(preface)}</p>\n"
        f"{body}\n</body>\n</html>\n",
        encoding="utf-8",
    )


def as_object(
    sections: Iterable[Section], runs: Sequence[Mapping[str, object]], overhead: str, *, partial: bool
) -> Mapping[str, object]:
    """The page for JSON, without pictures and with exact numbers."""
    figures = [
        {"title": shown.title, "caption": shown.caption, "columns": shown.columns, "rows": shown.rows}
        for shown in sections
    ]
    return {"overhead": overhead, "partial": partial, "figures": figures, "runs": runs}


def write_numbers(file: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """A row for each run, all with the same columns."""
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _section(section: Section) -> str:
    picture = base64.b64encode(section.png).decode("ascii")
    title = html.escape(section.title)
    return (
        f'<h2>{title}</h2>\n<img alt="{title}" src="data:image/png;base64,{picture}">\n'
        f"<p>{html.escape(section.caption)}</p>\n<table>\n{_row('th', section.columns)}\n"
        + "\n".join(_row("td", row) for row in section.rows)
        + "\n</table>"
    )


def _row(tag: str, cells: Iterable[Cell]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(_shown(cell))}</{tag}>" for cell in cells) + "</tr>"


def _shown(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case float():
            return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:,.1f}"
        case int():
            return f"{cell:,}"
        case str():
            return cell
