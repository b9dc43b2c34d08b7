"""`python -m benchmarks.scheduling.cells`: one pool beside the same GPUs as several pools behind a front.

A front asks every cell for a quote and submits to the best, with the rule of `eflow submit --pools`
(`elasticflow/client/pool_choice.py`). Beside it are two other rules: of the cells that would keep the deadline, the one
with the latest quote, which is the fullest; and each cell in turn, without any question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import machine
from benchmarks.scheduling.report import Sheet, show
from benchmarks.scheduling.workloads import Case, cluster_of, generated_cases, tables, trace_cases
from benchmarks.timing import Took, spreads, timed
from elasticflow.client.pool_choice import as_promised, keeps_deadline, pools_in_order
from elasticflow.services.admission.quote import quote
from elasticflow.shared.messages.commands import DeadlineQuoted, QuoteDeadline
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.trace.simulation import Simulation, spec_of
from elasticflow.simulator.workload.workload import TENANT, TraceJob, Workload

ONE_POOL, BY_QUOTES, FULLEST, IN_TURN = "one pool", "cells, by quotes", "cells, fullest first", "cells, in turn"


@dataclass
class Cell:
    """One pool of several, and how long its answers take: to a question, and to a submission."""

    simulation: Simulation
    cache: PlanningCache = field(default_factory=PlanningCache)
    quotes: list[Took] = field(default_factory=list[Took])
    submissions: list[Took] = field(default_factory=list[Took])

    def quote(self, job: TraceJob) -> DeadlineQuoted:
        simulation, question = self.simulation, QuoteDeadline(tenant=TENANT, spec=as_promised(spec_of(job)))
        quoted, took = timed(partial(quote, simulation.state, question, simulation.now_s, self.cache))
        self.quotes.append(took)
        return quoted

    def submit(self, job: TraceJob) -> bool:
        admitted, took = timed(partial(self.simulation.submit, job))
        self.submissions.append(took)
        return admitted


Order = Callable[[TraceJob, Sequence[Cell]], Sequence[int]]


def by_quotes(job: TraceJob, cells: Sequence[Cell]) -> Sequence[int]:
    """The cells that a front asks, in its order."""
    quotes = {str(number): cell.quote(job) for number, cell in enumerate(cells)}
    return [int(name) for name in pools_in_order(quotes, spec_of(job))]


def fullest_first(job: TraceJob, cells: Sequence[Cell]) -> Sequence[int]:
    """The same, but of the cells that would keep the deadline the latest quote first."""
    spec = spec_of(job)
    quotes = {str(number): cell.quote(job) for number, cell in enumerate(cells)}
    order = pools_in_order(quotes, spec)
    keeping = [name for name in order if keeps_deadline(quotes[name], spec)]
    return [int(name) for name in (*reversed(keeping), *order[len(keeping) :])]


def in_turn(job: TraceJob, cells: Sequence[Cell]) -> Sequence[int]:
    """One cell, by the number in the job's id."""
    return [int("".join(filter(str.isdigit, job.job_id)) or 0) % len(cells)]


def run_cells(workload: Workload, sizes: Sequence[int], order: Order) -> tuple[list[Cell], list[Result], list[int]]:
    """Submit each job to cells of these numbers of GPUs, one after another until one admits it.

    Returns the cells, their results, and for each job the number of cells to which it was submitted.
    """
    cells = [
        Cell(SimulatedRun(workload=workload, cluster=cluster_of(num_gpus), by_front=True).simulation())
        for num_gpus in sizes
    ]
    tries: list[int] = []
    for job in workload.jobs:
        for cell in cells:
            cell.simulation.advance_to(job.submitted_at_s)
        tries.append(0)
        for number in order(job, cells):
            tries[-1] += 1
            if cells[number].submit(job):
                break
    return cells, [cell.simulation.run() for cell in cells], tries


def measured(case: Case, sizes: Sequence[int], how: str) -> dict[str, Any]:
    """One run, and what it gives: deadlines, and CPU time of answers."""
    order = {BY_QUOTES: by_quotes, FULLEST: fullest_first}.get(how, in_turn)
    (cells, results, tries), took = timed(partial(run_cells, case.workload, sizes, order))
    times = {
        "quote": [each for cell in cells for each in cell.quotes],
        "submission": [each for cell in cells for each in cell.submissions],
    }
    return {
        "how": how,
        "cells": list(sizes),
        "jobs": len(case.workload.jobs),
        "met": sum(result.num_met() for result in results),
        "late": sum(result.num_late() for result in results),
        "admitted": sum(result.num_admitted for result in results),
        "admitted_by_cell": [result.num_admitted for result in results],
        "submitted_again": sum(count > 1 for count in tries),
        "cpu_s": took.cpu_s,
        **spreads({what: tooks for what, tooks in times.items() if tooks}),
    }


def sheet_of(rows: Sequence[dict[str, Any]], trace: str, num_gpus: int) -> Sheet:
    def time(row: dict[str, Any], what: str) -> str:
        spread = row["cpu_ms"].get(what)
        return "-" if spread is None else f"{spread['p50']:.2f} / {spread['p99']:.2f} ms"

    return Sheet(
        title=f"{trace} on {num_gpus} GPUs, {machine()}",
        columns=("pools", "jobs", "admitted", "met", "late", "asked again", "submission p50 / p99", "quote p50 / p99"),
        rows=tuple(
            (
                f"{row['how']} ({' + '.join(map(str, row['cells']))})",
                f"{row['jobs']:,}",
                f"{row['admitted']:,}",
                f"{row['met']:,}",
                f"{row['late']}",
                f"{row['submitted_again']}",
                time(row, "submission"),
                time(row, "quote"),
            )
            for row in rows
        ),
    )


def main(
    trace: Annotated[str, typer.Option(help="A published or generated workload with this in its name.")] = "cluster10",
    gpus: Annotated[int, typer.Option(min=0, help="Of the one pool. 0: as published.")] = 0,
    cells: Annotated[int, typer.Option(min=2, help="Equal parts of the GPUs.")] = 4,
    jobs: Annotated[int, typer.Option(min=0, help="Only the first of them. 0: all.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON object.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Simulate one pool, and the same GPUs as cells behind a front.

    \b
    Examples:
      python -m benchmarks.scheduling.cells
      python -m benchmarks.scheduling.cells --trace cluster01 --out cells.json
      python -m benchmarks.scheduling.cells --trace poisson --cells 2 --jobs 100
    """
    known = tables(None)
    found = [case for case in (*trace_cases(None, known), *generated_cases(known)) if trace in case.name]
    if not found:
        raise typer.BadParameter(f"no workload has {trace!r} in its name", param_hint="--trace")
    case, num_gpus = found[0], gpus or found[0].published_gpus
    case = case.first(jobs) if jobs else case
    if num_gpus % cells:
        raise typer.BadParameter(f"{num_gpus} GPUs are not {cells} equal cells", param_hint="--cells")
    warm_up()
    part = [num_gpus // cells] * cells
    runs = ((ONE_POOL, [num_gpus]), (BY_QUOTES, part), (FULLEST, part), (IN_TURN, part))
    rows = [measured(case, sizes, how) for how, sizes in runs]
    result = {"machine": machine(), "trace": case.name, "num_gpus": num_gpus, "runs": rows}
    show([sheet_of(rows, case.name, num_gpus)], result, as_json=as_json, out=out)


if __name__ == "__main__":
    typer.run(main)
