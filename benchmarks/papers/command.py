"""The command `python -m benchmarks.papers`: its options, the simulated runs, the live part and the report."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.papers.analogues import RESULTS, Analogue, chosen_analogues, read_analogues, recorded_result
from benchmarks.papers.claims import chosen
from benchmarks.papers.claims_file import read_claims
from benchmarks.papers.execution import Inputs, Store, csv_files, execute_run, further_figures
from benchmarks.papers.live import MEASURES, LiveStore, measure_part
from benchmarks.papers.report import AnalogueSection, analogue_counts, analogue_section, write_report
from benchmarks.papers.rows import counts, read_reasons, sections
from benchmarks.papers.runs import Run, all_runs
from benchmarks.report import machine
from benchmarks.timing import new_workers
from elasticflow.shared.library_imports import INTERRUPTED
from elasticflow.shared.runtime.process.logs import configure_logs
from elasticflow.simulator.command_inputs import make_folder, note, reporting_errors
from elasticflow.simulator.timing.training_time import PUBLISHED_SLOWDOWN
from elasticflow.simulator.trace.plots import require_matplotlib


def main(
    traces: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder of traces: those of the papers, of which missing ones are not run, and any others.",
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the pool for traces that no paper has.")] = 128,
    throughputs: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Folder of <model>.csv tables.", show_default="the project's own"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Write report.html, report.md, report.json and runs/ there.")] = Path(
        "report"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Only this figure, for example F9; may be repeated.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Also measure the analogues on CPU slots, one by one.")] = False,
    results: Annotated[
        Path, typer.Option(help="Folder of the JSON files of other benchmarks, which some analogues read.")
    ] = RESULTS,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the runs that --out has; else all are run.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = (os.cpu_count() or 1),
    slowdown_apart: Annotated[
        float,
        typer.Option(metavar="F", min=1, max=100, help="Of a job on eight nodes instead of one; 1: places are equal."),
    ] = PUBLISHED_SLOWDOWN,
) -> None:
    """Simulate what four papers report, and compare. With --live also train real workers on CPU slots.

    Each run is stored as it ends. Ctrl-C writes the report of what was run so far (exit code 130); --resume goes on.

    \b
    Examples:
      python -m benchmarks.papers --traces traces/ --throughputs tables/A100 --out report/
      python -m benchmarks.papers --traces traces/ --throughputs tables/A100 --only F9 --resume
      python -m benchmarks.papers --only F10     generated jobs on the project's own tables
      python -m benchmarks.papers --traces mine/ --gpus 64 --only trace-june     the trace mine/june.csv
      python -m benchmarks.papers --live --only VF-T1     accuracies of real workers
    """
    with reporting_errors():
        require_matplotlib()
        claims = read_claims()
        figures = chosen(claims.figures + further_figures(claims.figures, traces, gpus), tuple(only or ()))
        all_analogues = read_analogues(claims.figures, MEASURES)
        analogues = chosen_analogues(all_analogues, figures)
        reasons = read_reasons(claims.figures, all_analogues)
        inputs = Inputs(traces, throughputs, claims.generator, slowdown_apart)
        assert inputs.tables.models  # an error in them ends the command here
        runs = all_runs(claim for figure in figures for claim in figure.claims)
        # a wrong trace ends the command here, before anything is deleted
        num_jobs = {run: inputs.num_jobs(run.jobs) for run in runs if inputs.has(run.jobs)}
        make_folder(out)
        store = Store(out, inputs.digest(), runs, resume=resume)
        measured = [analogue for analogue in analogues if not analogue.recorded]
        live_store = LiveStore(out)
        if live and not resume:
            live_store.forget(measured)
        to_do = sorted((run for run in num_jobs if store.numbers(run) is None), key=num_jobs.__getitem__)
        interrupted = not _run_all(to_do, inputs, store, workers)
        if live and not interrupted:
            interrupted = not _measure_all(live_store, measured)
    shown = sections(figures, inputs, store.numbers, reasons)
    about = {
        "traces": ", ".join(file.stem for file in csv_files(traces)) if traces else "none",
        "throughputs": throughputs.name if throughputs else "the project's own",
        "places": inputs.places_in_words,
        "CPU time of all runs": f"{store.cpu_s:,.0f} s",
        "machine": machine(),
    }
    shown_store = live_store if live or resume else None
    with reporting_errors():
        live_shown = [_analogue_section(analogue, results, shown_store, reasons) for analogue in analogues]
    print(write_report(out, shown, live_shown, about))
    note(", ".join(f"{count} {name}" for name, count in counts(shown).items()))
    if live_shown:
        checks = ", ".join(f"{count} {name}" for name, count in analogue_counts(live_shown).items())
        note(f"checks of analogues: {checks}")
    if interrupted:
        note("interrupted: the report has what was run until then; --resume goes on")
        raise typer.Exit(INTERRUPTED)


def _run_all(runs: Sequence[Run], inputs: Inputs, store: Store, workers: int) -> bool:
    """Whether all ended; False after Ctrl-C."""
    if not runs:
        return True
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    pool = new_workers(min(workers, len(runs)))
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("simulating", total=len(runs))
            futures = {pool.submit(execute_run, run, inputs): run for run in runs}
            for future in as_completed(futures):
                store.keep(futures[future], future.result())
                bar.update(task, advance=1, description=futures[future].run_id)
    except KeyboardInterrupt:
        return False
    finally:
        _end(pool)
    return True


def _measure_all(store: LiveStore, analogues: Sequence[Analogue]) -> bool:
    """One after the other, so that none disturbs another. Whether all ended; False after Ctrl-C."""
    os.environ.pop("NATS_URL", None)  # each pool is one of its own
    configure_logs(level="error")
    to_do = store.to_do(analogues)
    try:
        for number, (analogue, part) in enumerate(to_do, 1):
            note(f"live {number}/{len(to_do)}: {analogue.run_id(part)}, {analogue.title}")
            store.keep(analogue, part, measure_part(analogue, part))
    except KeyboardInterrupt:
        return False
    return True


def _analogue_section(
    analogue: Analogue, results: Path, store: LiveStore | None, reasons: Mapping[str, str]
) -> AnalogueSection:
    """store: None without live parts."""
    if analogue.recorded:
        return analogue_section(analogue, [recorded_result(analogue, results)], reasons)
    parts = [None if store is None else store.result(analogue, part) for part in range(len(analogue.parts))]
    return analogue_section(analogue, parts, reasons)


def _end(pool: ProcessPoolExecutor) -> None:
    """End the pool without the runs that have not begun."""
    pool.shutdown(wait=False, cancel_futures=True)
