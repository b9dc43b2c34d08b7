"""`simulate`: runs a trace on a cluster under a policy and prints the numbers. `eflow simulate` starts this command."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from elasticflow.cli.option_table import takes_tables
from elasticflow.shared.library_imports import INTERRUPTED
from elasticflow.simulator.baselines.policy_catalogue import POLICY_NAMES
from elasticflow.simulator.command_inputs import (
    cluster_of,
    interruptible,
    make_folder,
    note,
    reporting_errors,
    workload_of,
)
from elasticflow.simulator.padding.commands import loads
from elasticflow.simulator.report.compare_command import compare
from elasticflow.simulator.timing.overhead import CHOICES as OVERHEADS
from elasticflow.simulator.timing.training_time import MEASURED_MIX_EFFICIENCY, PUBLISHED_SLOWDOWN
from elasticflow.simulator.trace.failures_and_speed_noise import HOUR_S, Failures, SpeedNoise
from elasticflow.simulator.trace.plots import require_matplotlib, write_plots
from elasticflow.simulator.trace.result import result_table, write_tables
from elasticflow.simulator.trace.simulated_run import (
    BEST_EFFORT_RULES,
    BY_TYPE,
    SimulatedRun,
    best_effort_rule,
    execute,
)
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.workload import bundled_traces

NEGATIVE = 1  # exit code: a check fails
MAX_FAILURES_SHOWN = 5
UPDATE_EVERY_S = 0.1  # real seconds between two updates of the progress bar

app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")
app.command()(compare)
app.command()(loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The trace and the cluster, what policies know of them, what goes otherwise than planned, and what is shown."""

    trace: Annotated[
        str, typer.Option("--trace", metavar="FILE", help=f"A trace, or a bundled one: {', '.join(bundled_traces())}.")
    ] = ""
    throughputs: Annotated[
        Path | None,
        typer.Option(
            "--throughputs", metavar="DIR", help="Folder of <model>.csv throughput tables.", show_default="bundled"
        ),
    ] = None
    nodes: Annotated[
        int | None, typer.Option("--nodes", metavar="N", help="Machines in the cluster.", show_default="4")
    ] = None
    pool: Annotated[
        str,
        typer.Option(
            "--pool", metavar="TYPES", help="Instead: GPUs of several types, for example 4xV100,8xP100,16xK80."
        ),
    ] = ""
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", metavar="K", help="GPUs of each machine.")] = 8
    mix_efficiency: Annotated[
        float,
        typer.Option(
            "--mix-efficiency",
            metavar="E",
            min=0,
            max=1,
            help="Of a job on several types, over their sum; 0: no job is.",
        ),
    ] = MEASURED_MIX_EFFICIENCY
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help=f"One of {', '.join(POLICY_NAMES)}.")] = (
        "selective"
    )
    best_effort: Annotated[
        str,
        typer.Option(
            "--best-effort",
            metavar="RULE",
            help=f"Who of the jobs without a promise is served: {', '.join(BEST_EFFORT_RULES)}.",
        ),
    ] = "shortest-first"
    overhead: Annotated[str, typer.Option("--overhead", metavar="MODEL", help=f"Cost of a resize: {OVERHEADS}.")] = (
        "reference"
    )
    failures: Annotated[
        int | None,
        typer.Option("--failures", metavar="SEED", min=0, help="Let nodes fail and rejoin, at times from this seed."),
    ] = None
    up_hours: Annotated[
        float, typer.Option("--up-hours", metavar="H", min=0.01, help="With --failures: mean time until a node fails.")
    ] = 336.0
    down_hours: Annotated[
        float, typer.Option("--down-hours", metavar="H", min=0.01, help="With --failures: mean time until it rejoins.")
    ] = 2.0
    max_down: Annotated[
        int | None, typer.Option("--max-down", metavar="N", min=1, help="With --failures: most nodes down at once.")
    ] = None
    slowdown_apart: Annotated[
        float,
        typer.Option(
            "--slowdown-apart",
            metavar="F",
            min=1,
            max=100,
            help="Of a job on eight nodes instead of one; 1: places are equal.",
        ),
    ] = PUBLISHED_SLOWDOWN
    reserve: Annotated[
        int, typer.Option("--reserve", metavar="K", min=0, max=2, help="Nodes that promises keep in reserve.")
    ] = 0
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence", metavar="P", min=0.5, max=0.9999, help="Promise only deadlines met with this probability."
        ),
    ] = None
    speed_noise: Annotated[
        float | None,
        typer.Option("--speed-noise", metavar="SIGMA", help="True speed: curve times a lognormal factor, from --seed."),
    ] = None
    bound: Annotated[
        bool, typer.Option("--bound", help="Show also the most deadlines that any scheduler could meet.")
    ] = False
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip bad rows, and list them.")] = False
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write jobs.csv, events.csv, windows.csv and pictures there."),
    ] = None
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Seed for what a raw trace leaves open, and for speeds.")
    ] = 0


@app.callback()
@takes_tables
def simulate(
    context: typer.Context,
    options: SimulateOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Run a trace through the live scheduler on virtual time.

    A cluster may have any number of GPUs: jobs hold powers of two of them, in
    buddy blocks. Ctrl-C prints the numbers so far, marked partial.

    \b
    Examples:
      eflow simulate --trace small --nodes 2 --bound
      eflow simulate --trace jobs.csv --throughputs tables/ --nodes 16 --json
      eflow simulate --trace jobs.csv --throughputs tables/ \\
        --pool 4xV100,8xP100,16xK80
      eflow simulate --trace small --nodes 2 --out pictures/
      eflow simulate --trace jobs.csv --best-effort fair
      eflow simulate --trace small --nodes 2 --failures 1 --reserve 1
      eflow simulate --trace small --nodes 2 --speed-noise 0.1 --confidence 0.99

    Exit codes: 0 done, 1 a certificate is wrong, 2 bad input or wrong usage,
    130 Ctrl-C.
    """
    if context.invoked_subcommand is not None:
        return
    if not options.trace:
        raise typer.BadParameter("is missing; give a file or the name of a bundled trace", param_hint="--trace")
    with reporting_errors():
        cluster = cluster_of(options.nodes, options.gpus_per_node, options.pool)
        simulated_run = SimulatedRun(
            workload=workload_of(
                options.trace, options.throughputs, cluster.gpu_types, skip_bad=options.skip_bad, seed=options.seed
            ),
            cluster=cluster,
            policy=options.policy,
            best_effort=best_effort_rule(options.best_effort),
            overhead=options.overhead,
            reserve_nodes=options.reserve,
            failures=_failures(options),
            confidence=options.confidence,
            noise=SpeedNoise(seed=options.seed, sigma=options.speed_noise) if options.speed_noise is not None else None,
            mix_efficiency=options.mix_efficiency or None,
            slowdown_apart=options.slowdown_apart,
        )
        verification = simulated_run.verification()
        simulation = simulated_run.simulation(verification, measures_idle_time=True)
        if options.out is not None:
            require_matplotlib()
            make_folder(options.out)
    with watched(simulation, f"{simulated_run.workload.name} on {simulated_run.cluster.num_gpus} GPUs") as stop:
        outcome = execute(simulated_run, simulation, verification, stop)
    result = outcome.result
    numbers = outcome.numbers(simulated_run.bound() if options.bound and not result.partial else None)
    if options.out is not None:
        write_tables(result, options.out)
        write_plots(result, options.out)
    if as_json:
        print(json.dumps(numbers), flush=True)
    else:
        _show(numbers)
    for failure in outcome.failures[:MAX_FAILURES_SHOWN]:
        note(f"certificate refused: {failure}")
    if options.reserve >= cluster.num_nodes:
        note(f"no deadline was promised: --reserve {options.reserve} keeps all {cluster.num_nodes} nodes in reserve")
    if result.partial:
        note("interrupted: these are the numbers so far")
        raise typer.Exit(INTERRUPTED)
    if outcome.failures:
        raise typer.Exit(NEGATIVE)


def _failures(options: SimulateOptions) -> Failures | None:
    if options.failures is None:
        return None
    return Failures(
        seed=options.failures,
        mean_up_s=options.up_hours * HOUR_S,
        mean_down_s=options.down_hours * HOUR_S,
        max_down=options.max_down,
    )


@contextmanager
def watched(simulation: Simulation, title: str) -> Iterator[Callable[[], bool]]:
    """Yields whether to stop: after the first Ctrl-C (the second ends at once). Shows a progress bar on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    updated_at_s = time.perf_counter()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with interruptible() as interrupted, bar:
        task = bar.add_task(title, total=len(simulation.workload.jobs))

        def stop() -> bool:
            nonlocal updated_at_s
            if not bar.disable and time.perf_counter() - updated_at_s > UPDATE_EVERY_S:
                updated_at_s = time.perf_counter()
                bar.update(task, completed=simulation.num_settled)
            return interrupted()

        yield stop


def _show(numbers: Mapping[str, object]) -> None:
    console = Console(highlight=False)
    console.print(result_table(numbers))
    if by_type := cast(Mapping[str, Mapping[str, object]] | None, numbers[BY_TYPE]):
        console.print(_types(by_type))


def _types(by_type: Mapping[str, Mapping[str, object]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("type", *next(iter(by_type.values()))):
        table.add_column(name, justify="left" if name == "type" else "right")
    for gpu_type, numbers in by_type.items():
        table.add_row(gpu_type, *map(_readable, numbers.values()))
    return table


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
