"""`simulate`: a trace, a cluster and a policy in; the numbers out. `eflow simulate` hands over to this."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from simulator.interruption import INTERRUPTED, interruptible
from simulator.report.command import compare
from simulator.trace_driven.failures import HOUR_S, Failures
from simulator.trace_driven.inputs import make_folder, note, refusing, workload_of
from simulator.trace_driven.plots import require_matplotlib, write_plots
from simulator.trace_driven.pool import ClusterShape
from simulator.trace_driven.simulation import Simulation
from simulator.trace_driven.speed_noise import SpeedNoise
from simulator.trace_driven.strategies import STRATEGIES
from simulator.trace_driven.tables import write_tables
from simulator.trace_driven.trial import Trial, run
from simulator.workload.bundled import bundled_traces
from simulator.workload.overhead import CHOICES as OVERHEADS

NEGATIVE = 1  # exit code: a check fails
MAX_FAILURES_SHOWN = 5
LOOK_EVERY_S = 0.1  # real seconds between two looks at the progress

app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")


app.command()(compare)


@app.callback()
def simulate(
    context: typer.Context,
    trace: Annotated[
        str, typer.Option(metavar="FILE", help=f"A trace, or a bundled one: {', '.join(bundled_traces())}.")
    ] = "",
    throughputs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of <model>.csv throughput tables.", show_default="bundled"),
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="Machines in the cluster.")] = 4,
    gpus_per_node: Annotated[int, typer.Option(metavar="K", help="GPUs of each.")] = 8,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(STRATEGIES)}.")
    ] = "selective",
    overhead: Annotated[
        str, typer.Option(metavar="MODEL", help=f"What a change of GPUs costs: {OVERHEADS}.")
    ] = "reference",
    failures: Annotated[
        int | None, typer.Option(metavar="SEED", min=0, help="Let nodes fail and come back.")
    ] = None,
    up_hours: Annotated[
        float, typer.Option(metavar="H", min=0.01, help="With --failures: mean time until a node fails.")
    ] = 336.0,
    down_hours: Annotated[
        float, typer.Option(metavar="H", min=0.01, help="With --failures: mean time until it is back.")
    ] = 2.0,
    max_down: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --failures: so many nodes at once at most.")
    ] = None,
    reserve: Annotated[
        int, typer.Option(metavar="K", min=0, max=2, help="Promise with so many nodes in reserve.")
    ] = 0,
    confidence: Annotated[
        float | None,
        typer.Option(metavar="P", min=0.5, max=0.9999, help="Promise what is kept with this probability."),
    ] = None,
    speed_noise: Annotated[
        float | None,
        typer.Option(metavar="SIGMA", help="True speed: curve times a lognormal factor, from --seed."),
    ] = None,
    bound: Annotated[
        bool, typer.Option("--bound", help="Show also how many deadlines anybody could meet at most.")
    ] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Pass over bad rows, and name them.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write jobs.csv, events.csv and pictures there.")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="For what a raw trace leaves open, and speeds.")
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Run a trace through the live scheduler on virtual time.

    A cluster need not be a power of two: jobs hold powers of two of GPUs, in buddy
    blocks of what is there. Ctrl-C shows what there is so far, marked partial.

    \b
    Examples:
      eflow simulate --trace small --nodes 2 --bound
      eflow simulate --trace jobs.csv --throughputs tables/ --nodes 16 --json
      eflow simulate --trace small --nodes 2 --out pictures/
      eflow simulate --trace small --nodes 2 --failures 1 --reserve 1
      eflow simulate --trace small --nodes 2 --speed-noise 0.1 --confidence 0.99

    Exit codes: 0 done, 1 a certificate is wrong, 2 bad input or wrong usage, 130 Ctrl-C.
    """
    if context.invoked_subcommand is not None:
        return
    if not trace:
        raise typer.BadParameter("give a file or a bundled name", param_hint="--trace")
    with refusing():
        trial = Trial(
            workload=workload_of(trace, throughputs, skip_bad=skip_bad, seed=seed),
            cluster=ClusterShape(num_nodes=nodes, gpus_per_node=gpus_per_node),
            policy=policy,
            overhead=overhead,
            reserve_nodes=reserve,
            failures=_failures(failures, up_hours, down_hours, max_down),
            confidence=confidence,
            noise=SpeedNoise(seed=seed, sigma=speed_noise) if speed_noise is not None else None,
        )
        verification = trial.verification()
        simulation = trial.simulation(verification)
        if out is not None:
            require_matplotlib()
            make_folder(out)
    with watched(simulation, f"{trial.workload.name} on {trial.cluster.num_gpus} GPUs") as stop:
        outcome = run(trial, simulation, verification, stop)
    result = outcome.result
    numbers = outcome.numbers(trial.bound() if bound and not result.partial else None)
    if out is not None:
        write_tables(result, out)
        write_plots(result, out)
    if as_json:
        print(json.dumps(numbers), flush=True)
    else:
        _show(numbers)
    for failure in outcome.failures[:MAX_FAILURES_SHOWN]:
        note(f"certificate refused: {failure}")
    if reserve >= nodes:
        note(f"no deadline was promised: a reserve of {reserve} keeps all nodes back")
    if result.partial:
        note("interrupted: these are the numbers so far")
        raise typer.Exit(INTERRUPTED)
    if outcome.failures:
        raise typer.Exit(NEGATIVE)


def _failures(seed: int | None, up_hours: float, down_hours: float, max_down: int | None) -> Failures | None:
    if seed is None:
        return None
    return Failures(
        seed=seed, mean_up_s=up_hours * HOUR_S, mean_down_s=down_hours * HOUR_S, max_down=max_down
    )


@contextmanager
def watched(simulation: Simulation, title: str) -> Iterator[Callable[[], bool]]:
    """Says when to stop: at the first Ctrl-C (the second ends at once); meanwhile shows a bar on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    looked_at_s = time.perf_counter()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with interruptible() as interrupted, bar:
        task = bar.add_task(title, total=len(simulation.workload.jobs))

        def stop() -> bool:
            nonlocal looked_at_s
            if not bar.disable and time.perf_counter() - looked_at_s > LOOK_EVERY_S:
                looked_at_s = time.perf_counter()
                bar.update(task, completed=simulation.num_settled)
            return interrupted()

        yield stop


def _show(numbers: Mapping[str, object]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in numbers.items():
        if value is None:
            continue
        table.add_row(name, _readable(value))
    Console(highlight=False).print(table)


def _readable(value: object) -> str:
    match value:
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
