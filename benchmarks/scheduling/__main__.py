"""`python -m benchmarks.scheduling`: promises, quality and speed of the scheduler, beside bounds and baselines.

All results are one JSON object, written after each of them, so that a run can be resumed.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import machine
from benchmarks.scheduling.decisions import (
    measure_answers,
    measure_cycle,
    measure_decisions,
    measure_simulation,
    two_months,
)
from benchmarks.scheduling.quality import MOVES, SCALES, Plan, in_short, measure_failures, measure_quality, totals
from benchmarks.scheduling.relaxations import measure_relaxations
from benchmarks.scheduling.report import print_sheets, sheets
from benchmarks.scheduling.workloads import Case, generated_cases, tables, trace_cases
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.library_imports import INTERRUPTED
from elasticflow.simulator.baselines.policy_catalogue import BASELINES
from elasticflow.simulator.command_inputs import reporting_errors
from elasticflow.simulator.workload.throughput_tables import Throughputs

# --- results so far ------------------------------------------------------------------------------------


class Results:
    """values: by part. file: None to keep them in memory only. resume: go on from what the file holds, if anything."""

    def __init__(self, file: Path | None, *, resume: bool, **settings: object) -> None:
        self._file = file
        self.values: dict[str, Any] = {"machine": machine(), **settings, "costs": {}}
        if resume and file is not None and file.exists():
            known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            differing = [name for name, value in settings.items() if known.get(name) != value]
            if differing:
                raise BadSettings((f"{file} was measured with other settings: {', '.join(differing)}",))
            self.values = known

    def keep(self, part: str, value: object) -> None:
        """Write at once: an interrupted run loses only the result in progress."""
        self.values[part] = value
        if self._file is not None:
            unfinished = self._file.with_suffix(".unfinished")
            unfinished.write_text(self.text(), encoding="utf-8")
            unfinished.replace(self._file)

    def text(self) -> str:
        return json.dumps(self.values, indent=2) + "\n"

    @contextmanager
    def counted(self, part: str, workers: int = 1) -> Iterator[None]:
        """What it costs to measure a part, in all runs together."""
        began_cpu_s, began_s = _cpu_s(), time.perf_counter()
        try:
            yield
        finally:
            costs: dict[str, dict[str, float]] = self.values["costs"]
            before = costs.get(part, {"cpu_s": 0.0, "wall_s": 0.0})
            costs[part] = {
                "workers": workers,
                "cpu_s": before["cpu_s"] + _cpu_s() - began_cpu_s,
                "wall_s": before["wall_s"] + time.perf_counter() - began_s,
            }
            self.keep("costs", costs)


def _cpu_s() -> float:
    """The CPU time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


# --- the command ---------------------------------------------------------------------------------------


QUICK_JOBS, QUICK_MOVES, QUICK_SCALES = 30, 200, (1, 8)
RELAXATIONS_JOBS = 250
SATURATED_POOLS = (10, 100, 250, 500, 1_000)  # live jobs
QUICK_SHARE = 0.01  # of the two months
LONG_TRACE = "cluster01"


class Part(StrEnum):
    """What can be measured alone."""

    QUALITY = "quality"
    SIMULATIONS = "simulations"
    DECISIONS = "decisions"
    CYCLE = "cycle"
    FAILURES = "failures"
    RELAXATIONS = "relaxations"


def main(
    quick: Annotated[bool, typer.Option(help="Little work: to see that it runs, not to quote.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file, as it grows.")] = None,
    resume: Annotated[bool, typer.Option(help="Measure only what --out does not hold yet.")] = False,
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
    baselines: Annotated[bool, typer.Option(help="Quality: run all baselines too: hours.")] = False,
    moves: Annotated[
        int, typer.Option(min=0, help="Quality: of each search for a schedule with hindsight; 0: none.")
    ] = MOVES,
    runs: Annotated[int, typer.Option(min=1, help="Failures: seeded runs.")] = 1_000,
    requests: Annotated[int, typer.Option(min=1, help="Relaxations: requests in each pool.")] = 1_000,
    workers: Annotated[int, typer.Option(min=1, help="Processes; speed is measured in one.")] = (os.cpu_count() or 1),
) -> None:
    """Measure the scheduler on this machine: one fixed configuration, overhead `reference`.

    \b
    Examples:
      python -m benchmarks.scheduling --out all.json --resume   whole; again after Ctrl-C
      python -m benchmarks.scheduling --only decisions --only cycle
      python -m benchmarks.scheduling --only quality --trace cluster10 --baselines
    """
    if resume and out is None:
        raise typer.BadParameter("say with --out from which file", param_hint="--resume")
    parts = set(only or Part)
    with reporting_errors():
        known = tables(throughputs)
        source = known.source if throughputs else Path(known.source).name
        results = Results(out, resume=resume, quick=quick, throughputs=source)
        cases = trace_cases(traces, known)
    plan = Plan(
        cases=tuple(
            case.first(QUICK_JOBS) if quick else case
            for case in (*cases, *generated_cases(known))
            if not trace or any(name in case.name for name in trace)
        ),
        scales=QUICK_SCALES if quick else SCALES,
        baselines=tuple(BASELINES) if baselines else (),
        moves=min(moves, QUICK_MOVES) if quick else moves,
    )
    interrupted = False
    try:
        if Part.DECISIONS in parts:
            _decisions(results, known, quick=quick)
        if Part.CYCLE in parts:
            _cycle(results, known, quick=quick)
        if Part.SIMULATIONS in parts:
            _simulations(results, cases, known, quick=quick)
        if Part.FAILURES in parts:
            _failures(results, known, max(runs // 100, 2) if quick else runs, workers)
        if Part.RELAXATIONS in parts:
            _relaxations(results, known, quick=quick, count=3 if quick else requests)
        if Part.QUALITY in parts:
            _quality(results, plan, workers)
    except KeyboardInterrupt:
        interrupted = True
        _note("interrupted: this was measured until then" + (", --resume goes on" if out else ""))
    _show(results, as_json, markdown)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _decisions(results: Results, known: Throughputs, *, quick: bool) -> None:
    if Part.DECISIONS in results.values:
        return
    part = 50 if quick else 1
    with results.counted(Part.DECISIONS):
        num_gpus, num_live, count = 2_048 // (32 if quick else 1), 1_000 // part, 500 // part
        decisions = measure_decisions(known, num_gpus=num_gpus, num_live=num_live, count=count)
        sizes = SATURATED_POOLS[:1] if quick else SATURATED_POOLS
        answers = measure_answers(known, sizes=sizes, count=count)
        results.keep(Part.DECISIONS, {**decisions, "answers": answers})
    _note("one decision and one quote are measured")


def _cycle(results: Results, known: Throughputs, *, quick: bool) -> None:
    if Part.CYCLE in results.values:
        return
    num_gpus, num_live, count = (256, 200, 4) if quick else (16_384, 10_000, 40)
    with results.counted(Part.CYCLE):
        results.keep(Part.CYCLE, measure_cycle(known, num_gpus=num_gpus, num_live=num_live, count=count))
    _note("one planning cycle is measured")


def _simulations(results: Results, cases: list[Case], known: Throughputs, *, quick: bool) -> None:
    measured: list[dict[str, Any]] = results.values.get(Part.SIMULATIONS, [])
    long = next((case for case in cases if LONG_TRACE in case.name), cases[0])
    for case in (long.first(QUICK_JOBS) if quick else long, two_months(known, QUICK_SHARE if quick else 1.0)):
        if any(run["trace"] == case.name for run in measured):
            continue
        with results.counted(Part.SIMULATIONS):
            unchecked, checked = measure_simulation(case)
            measured = [*measured, unchecked, checked]
            results.keep(Part.SIMULATIONS, measured)
        _note(f"{case.name}: {unchecked['cpu_s']:.1f} s of CPU, {checked['cpu_s']:.1f} s with checks")


def _failures(results: Results, known: Throughputs, runs: int, workers: int) -> None:
    if results.values.get(Part.FAILURES, {}).get("runs") == runs:
        return
    with results.counted(Part.FAILURES, workers):
        results.keep(Part.FAILURES, measure_failures(known, runs, workers))
    _note(f"{runs} lives with failures are measured")


def _relaxations(results: Results, known: Throughputs, *, quick: bool, count: int) -> None:
    if Part.RELAXATIONS in results.values:
        return
    with results.counted(Part.RELAXATIONS):
        results.keep(Part.RELAXATIONS, measure_relaxations(known, count, QUICK_JOBS if quick else RELAXATIONS_JOBS))
    _note("requests are asked again with less to ask")


def _quality(results: Results, plan: Plan, workers: int) -> None:
    """Rows of an earlier run occupancy beside those of this one."""
    known: list[dict[str, Any]] = results.values.get(Part.QUALITY, {}).get("rows", [])
    rows = {(row["trace"], row["num_gpus"]): row for row in known}
    with results.counted(Part.QUALITY, workers):
        for row in measure_quality(plan, workers, known):
            rows[row["trace"], row["num_gpus"]] = row
            shown = list(rows.values())
            results.keep(Part.QUALITY, {"rows": shown, "totals": totals(shown)})
            _note(in_short(row))


def _show(results: Results, as_json: bool, markdown: Path | None) -> None:
    shown = list(sheets(results.values))
    if markdown:
        markdown.write_text("\n".join(sheet.markdown() for sheet in shown))
    if as_json:
        print(results.text(), end="")
        return
    print_sheets(shown)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
