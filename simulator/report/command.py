"""`simulate compare`: traces, cluster sizes and policies in; one page with the paper's figures out."""

import json
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from shared.errors import BadSettings
from simulator.interruption import INTERRUPTED
from simulator.report.comparison import Comparison, NotRun, Runner
from simulator.trace_driven.inputs import make_folder, note, refusing, workload_of
from simulator.trace_driven.plots import require_matplotlib
from simulator.trace_driven.pool import ClusterShape
from simulator.trace_driven.strategies import STRATEGIES, strategy
from simulator.trace_driven.trial import Outcome
from simulator.workload.overhead import CHOICES as OVERHEADS
from simulator.workload.overhead import overhead_model

if TYPE_CHECKING:
    from simulator.bound import Bound
    from simulator.report.figures import Section


def compare(
    trace: Annotated[
        list[str], typer.Option(metavar="FILE", help="A trace or a bundled name; give it again for more.")
    ],
    throughputs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of <model>.csv throughput tables.", show_default="bundled"),
    ] = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Machines; give it again for more sizes. [default: 4]"),
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(metavar="K", help="GPUs of each.")] = 8,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The first is the one to compare with. Default: all of them."),
    ] = None,
    overhead: Annotated[
        str, typer.Option(metavar="MODEL", help=f"What a change of GPUs costs: {OVERHEADS}.")
    ] = "reference",
    bound: Annotated[
        bool, typer.Option("--bound", help="Draw also how many deadlines anybody could meet at most.")
    ] = False,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Simulations side by side.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="For report.html and numbers.csv.")] = Path(
        "report"
    ),
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Pass over bad rows, and name them.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="For what a raw trace leaves open.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: what the report shows, and all numbers.")
    ] = False,
) -> None:
    """Compare policies on traces and cluster sizes: figures 7 to 11 of the paper.

    Ctrl-C leaves a report of what was run until then, marked partial (exit code 130).

    \b
    Examples:
      eflow simulate compare --trace small --nodes 1 --nodes 2 --out report/
      eflow simulate compare --trace small --trace bursty --policy selective \\
        --policy edf --policy gandiva --bound
      eflow simulate compare --trace small --policy selective --policy edf --json
    """
    with refusing():
        require_matplotlib()
        comparison = Comparison(
            workloads=tuple(
                workload_of(one, throughputs, skip_bad=skip_bad, seed=seed) for one in dict.fromkeys(trace)
            ),
            clusters=tuple(
                ClusterShape(num_nodes=count, gpus_per_node=gpus_per_node)
                for count in dict.fromkeys(nodes or [4])
            ),
            policies=tuple(dict.fromkeys(policy or STRATEGIES)),
            overhead=overhead,
        )
        _check(comparison)
        make_folder(out)
        _write(comparison, out, workers=workers, with_bound=bound, as_json=as_json)


def _check(comparison: Comparison) -> None:
    """What would otherwise show only after a while."""
    names = [workload.name for workload in comparison.workloads]
    if len(set(names)) < len(names):
        raise BadSettings((f"two traces have the same name: {', '.join(sorted(names))}; rename a file",))
    for policy in comparison.policies:
        strategy(policy, comparison.workloads[0])
    overhead_model(comparison.overhead, comparison.clusters[0].num_gpus)


def _write(comparison: Comparison, folder: Path, *, workers: int, with_bound: bool, as_json: bool) -> None:
    from simulator.report.page import as_object, write_numbers, write_page  # drawing takes a while to load

    console, bounds = Console(stderr=True), dict[tuple[str, int], "Bound"]()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("simulating", total=None)

        def done(outcome: Outcome) -> None:
            trial = outcome.trial
            bar.update(task, advance=1, description=f"{trial.workload.name}: {trial.policy}")

        runner = Runner(workers=workers, done=done)
        try:
            drawn = _drawn(comparison, runner, bounds, with_bound=with_bound)
        except KeyboardInterrupt:
            runner.over = True
            drawn = _drawn_so_far(comparison, runner, bounds)
    if not runner.outcomes:
        with suppress(OSError):  # there is something else in it
            folder.rmdir()
        if as_json:
            print(json.dumps(as_object([], [], comparison.overhead, partial=True)), flush=True)
        note("interrupted before the first run was over: nothing to report")
        raise typer.Exit(INTERRUPTED)
    title = "Schedulers compared"
    preface = f"Overhead model: {comparison.overhead}. All numbers of all runs are in numbers.csv."
    if runner.over:
        title += " (partial)"
        preface += f" Interrupted after {len(runner.outcomes)} runs: what needs more of them is missing."
    runs = [
        outcome.numbers(bounds.get((outcome.trial.workload.name, outcome.trial.cluster.num_gpus)))
        for outcome in runner.outcomes.values()
    ]
    write_page(folder / "report.html", title, preface, drawn)
    write_numbers(folder / "numbers.csv", runs)
    if as_json:
        print(json.dumps(as_object(drawn, runs, comparison.overhead, partial=runner.over)), flush=True)
    else:
        print(folder / "report.html")
    if runner.over:
        note(f"interrupted: this is of the first {len(runner.outcomes)} runs")
        raise typer.Exit(INTERRUPTED)


def _drawn(
    comparison: Comparison, runner: Runner, bounds: "dict[tuple[str, int], Bound]", *, with_bound: bool
) -> "list[Section]":
    """All figures. bounds: filled where they are asked for."""
    from simulator.bound import clairvoyant_bound
    from simulator.report.figures import sections

    runner(comparison.trials())
    for workload, cluster in product(comparison.workloads, comparison.clusters) if with_bound else ():
        cost = overhead_model(comparison.overhead, cluster.num_gpus).least(workload.jobs)
        bounds[workload.name, cluster.num_gpus] = clairvoyant_bound(workload, cluster.num_gpus, cost)
    return list(sections(comparison, runner, bounds))


def _drawn_so_far(
    comparison: Comparison, runner: Runner, bounds: "dict[tuple[str, int], Bound]"
) -> "list[Section]":
    """The figures of what was run; those that need more runs are left out."""
    from simulator.report.figures import sections

    drawn, part = list["Section"](), comparison.first(runner.num_done(comparison.trials()))
    with suppress(NotRun):
        for section in sections(part, runner, bounds) if part is not None else ():
            drawn.append(section)
    return drawn
