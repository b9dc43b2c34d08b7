"""`python -m benchmarks.scheduling`: promises, quality and speed of the scheduler, beside bounds and baselines."""

import json
import os
import platform
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.scheduling.decisions import measure_cycle, measure_decisions
from benchmarks.scheduling.failures import measure_failures
from benchmarks.scheduling.quality import SCALES, Plan, measure_quality, totals
from benchmarks.scheduling.report import sheets
from benchmarks.scheduling.simulations import measure_simulation, two_months
from benchmarks.scheduling.workloads import Case, generated_cases, tables, trace_cases
from simulator.baselines.catalogue import BASELINES
from simulator.trace_driven.inputs import refusing
from simulator.workload.throughputs import Throughputs

QUICK_JOBS, QUICK_MOVES, QUICK_SCALES = 30, 200, (1, 8)
QUICK_SHARE = 0.01  # of the two months
LONG_TRACE = "cluster01"
WIDEST = 150  # columns of the widest table: no cell is folded


class Part(StrEnum):
    """What can be measured alone."""

    QUALITY = "quality"
    SIMULATIONS = "simulations"
    DECISIONS = "decisions"
    FAILURES = "failures"


def main(
    quick: Annotated[bool, typer.Option(help="Little work: to see that it runs, not to quote.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Only the JSON object, on standard output.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables to this file.")] = None,
    traces: Annotated[
        Path | None, typer.Option(help="Folder of traces.", show_default="the published, or bundled ones")
    ] = None,
    throughputs: Annotated[
        Path | None, typer.Option(help="Folder of tables.", show_default="the published, or bundled ones")
    ] = None,
    only: Annotated[list[Part] | None, typer.Option(help="Measure this part alone; may be repeated.")] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(help="Quality: only workloads with this in their name; may be repeated."),
    ] = None,
    baselines: Annotated[bool, typer.Option(help="Quality: run all baselines too: hours.")] = True,
    hindsight: Annotated[bool, typer.Option(help="Quality: search for schedules with hindsight.")] = True,
    runs: Annotated[int, typer.Option(min=1, help="Failures: seeded runs.")] = 1_000,
    workers: Annotated[int, typer.Option(min=1, help="Processes; speed is measured in one.")] = (
        os.cpu_count() or 1
    ),
) -> None:
    """Measure the scheduler on this machine: one fixed configuration, overhead `reference`."""
    parts = set(only or Part)
    result: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "quick": quick,
    }
    with refusing():
        known = tables(throughputs)
        cases = trace_cases(traces, known)
        result["throughputs"] = known.source if throughputs else Path(known.source).name
    if Part.QUALITY in parts:
        chosen = [case for case in (*cases, *generated_cases(known)) if _is_named(case, trace)]
        plan = Plan(
            cases=tuple(case.first(QUICK_JOBS) if quick else case for case in chosen),
            scales=QUICK_SCALES if quick else SCALES,
            baselines=tuple(BASELINES) if baselines else (),
            moves=0 if not hindsight else QUICK_MOVES if quick else Plan.moves,
        )
        rows = measure_quality(plan, workers, _note)
        result["quality"] = {"rows": rows, "totals": totals(rows)}
    if Part.SIMULATIONS in parts:
        result["simulations"] = _simulations(cases, known, quick=quick)
    if Part.DECISIONS in parts:
        result |= _decisions(known, quick=quick)
    if Part.FAILURES in parts:
        result["failures"] = measure_failures(known, max(runs // 100, 2) if quick else runs, workers)
    _show(result, as_json, out, markdown)


def _is_named(case: Case, names: list[str] | None) -> bool:
    return not names or any(name in case.name for name in names)


def _simulations(cases: list[Case], known: Throughputs, *, quick: bool) -> list[dict[str, Any]]:
    long = next((case for case in cases if LONG_TRACE in case.name), cases[0])
    measured = list[dict[str, Any]]()
    for case in (long.first(QUICK_JOBS) if quick else long, two_months(known, QUICK_SHARE if quick else 1.0)):
        measured += measure_simulation(case)
        _note(f"{case.name}: {measured[-2]['cpu_s']:.1f} s of CPU, {measured[-1]['cpu_s']:.1f} s with checks")
    return measured


def _decisions(known: Throughputs, *, quick: bool) -> dict[str, Any]:
    part = 50 if quick else 1
    decisions = measure_decisions(
        known, num_gpus=2_048 // (32 if quick else 1), num_live=1_000 // part, count=500 // part
    )
    _note("one decision and one quote are measured")
    cycle = measure_cycle(known, num_gpus=16_384 // part, num_live=10_000 // part, count=40 // min(part, 10))
    return {"decisions": decisions, "cycle": cycle}


def _show(result: dict[str, Any], as_json: bool, out: Path | None, markdown: Path | None) -> None:
    text = json.dumps(result, indent=2)
    shown = list(sheets(result))
    if out:
        out.write_text(text + "\n")
    if markdown:
        markdown.write_text("\n".join(sheet.markdown() for sheet in shown))
    if as_json:
        print(text)
        return
    console = Console()
    console.width = max(console.width, WIDEST)
    for sheet in shown:
        console.print(sheet.rich())


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
