"""Commands of padding: `simulate loads` executes padding loads in idle windows, `suits` says whether tasks pay there.

The first one shows tasks done, useful GPU time and fairness.
"""

import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from elasticflow.shared.scheduling.padding.cost_model import TaskCost, highest_useful_share, useful_share
from elasticflow.shared.scheduling.padding.task_length import best_task_s_by_quantiles
from elasticflow.simulator.command_inputs import reporting_errors
from elasticflow.simulator.padding.load_simulation import simulate_loads
from elasticflow.simulator.padding.windows_and_loads import read_loads, read_windows, require_long_windows
from elasticflow.times import duration_in_words

# of the table of loads, short enough for a terminal of 80 columns
HEADINGS = {
    "load_id": "load",
    "tenant": "tenant",
    "tasks_done": "done",
    "tasks_lost": "lost",
    "finished_at_s": "finished",
    "given_gpu_s": "given_s",
    "useful_gpu_s": "useful_s",
    "useful_share": "share",
    "useful_share_predicted": "model",
}


def loads(
    windows: Annotated[
        Path, typer.Option(metavar="FILE", help="CSV file of idle windows: gpu,start_s,end_s and perhaps gpu_type.")
    ],
    load: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="TOML file with a table for each padding load, or CSV file with a row for each."
        ),
    ],
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed for task seconds of loads with a spread.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Execute padding loads in idle windows, with the executors' hand-out policy.

    A load needs load_id, tenant, tasks and task_s. It may have weight (of its
    tenant), overhead_s (of a task), start_stop_s (of a runner), opened_at_s,
    gpu_type, and spread (of task seconds: the standard deviation of their
    logarithm).

    \b
    Examples:
      eflow simulate loads --windows windows.csv --load loads.toml
      eflow simulate loads --windows windows.csv --load loads.csv --json

    Exit codes: 0 done, 2 bad input or wrong usage.
    """
    with reporting_errors():
        idle_windows, padding_loads = read_windows(windows), read_loads(load)
        require_long_windows(load, padding_loads, idle_windows)
    result = simulate_loads(idle_windows, padding_loads, seed=seed)
    numbers, by_load = result.numbers(), [result.load_numbers(outcome) for outcome in result.outcomes]
    if as_json:
        print(json.dumps({**numbers, "by_load": by_load}), flush=True)
    else:
        _show(numbers, by_load)


def _show(numbers: Mapping[str, object], by_load: list[Mapping[str, object]]) -> None:
    totals = Table(box=None, pad_edge=False, show_header=False)
    totals.add_column(style="bold")
    totals.add_column(justify="right")
    for name, value in numbers.items():
        totals.add_row(name, _readable(value))
    table = Table(box=None, pad_edge=False)
    for name, heading in HEADINGS.items():
        table.add_column(heading, justify="left" if name in ("load_id", "tenant") else "right", overflow="fold")
    for shown in by_load:
        table.add_row(*(_readable(shown[name]) for name in HEADINGS))
    console = Console(highlight=False)
    console.print(totals)
    console.print()
    console.print(table)


def _readable(value: object) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


# --- whether tasks pay ---------------------------------------------------------------------------------
# `suits`: whether tasks of a padding load pay in idle windows. `eflow suits` starts it, with the pool's windows.

NEGATIVE = 1  # exit code: it does not pay

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suitability:
    """What tasks yield in idle windows. Shares and ratios: see `cost_model`; None: unknown, or no task ends.

    best_task_s, best_useful_share: of the length with the greatest useful share; None without an overhead, or if no
    window holds a task.
    """

    num_windows: int
    median_window_s: float | None
    idle_s: float
    useful_share: float | None
    price_ratio: float
    cost_ratio: float | None
    pays: bool
    best_task_s: float | None
    best_useful_share: float | None


@app.command()
def suits(
    task_s: Annotated[float, typer.Option(min=1e-6, help="Computation of one task.")],
    price_ratio: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of padding GPU time to ordinary GPU time.")],
    overhead_s: Annotated[float, typer.Option(min=0.0, help="The rest of each task.")] = 0.0,
    start_stop_s: Annotated[float, typer.Option(min=0.0, help="Start and end of a runner.")] = 0.0,
    windows: Annotated[
        Path | None, typer.Option(help="CSV file of idle windows. Default: a JSON list of seconds on standard input.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Predict whether tasks pay in idle windows. `eflow suits --help` explains the
    options.
    """
    with reporting_errors():
        windows_s = json.load(sys.stdin) if windows is None else [one.length_s for one in read_windows(windows)]
    cost = TaskCost(task_s=task_s, overhead_s=overhead_s, start_stop_s=start_stop_s)
    found = suitability(windows_s, cost, price_ratio)
    print(json.dumps(asdict(found)) if as_json else "\n".join(lines(found, cost)), flush=True)
    raise typer.Exit(0 if found.pays else NEGATIVE)


def suitability(windows_s: list[float], cost: TaskCost, price_ratio: float) -> Suitability:
    """What tasks of this cost yield in idle windows.

    Without windows, admission opens each load that would pay in an endless one.
    """
    share = useful_share(windows_s, cost) if windows_s else None
    best_s = best_task_s_by_quantiles(windows_s, cost.overhead_s, cost.start_stop_s) if windows_s else None
    best = None
    if best_s is not None:
        best = TaskCost(task_s=best_s, overhead_s=cost.overhead_s, start_stop_s=cost.start_stop_s)
    return Suitability(
        num_windows=len(windows_s),
        median_window_s=statistics.median(windows_s) if windows_s else None,
        idle_s=sum(windows_s),
        useful_share=share,
        price_ratio=price_ratio,
        cost_ratio=price_ratio / share if share else None,
        pays=(highest_useful_share(cost) if share is None else share) > price_ratio,
        best_task_s=best_s,
        best_useful_share=None if best is None else useful_share(windows_s, best),
    )


def lines(found: Suitability, cost: TaskCost) -> list[str]:
    """The numbers, and whether it pays."""
    if found.median_window_s is None or found.useful_share is None:
        return [_conclusion_without_windows(found, cost)]
    median, total = duration_in_words(found.median_window_s), duration_in_words(found.idle_s)
    return [
        f"idle windows  {found.num_windows:,}, median {median}, {total} in all",
        f"useful share  {found.useful_share:.1%}",
        f"price ratio   {found.price_ratio:.3g}",
        f"cost ratio    {'-' if found.cost_ratio is None else format(found.cost_ratio, '.3g')}",
        f"best task     {_best(found, cost)}",
        _conclusion(found),
    ]


def _best(found: Suitability, cost: TaskCost) -> str:
    if found.best_task_s is not None:
        return f"{found.best_task_s:.3g} s, useful share {found.best_useful_share:.1%}"
    return (
        "none: each window is shorter than the overhead"
        if cost.overhead_s
        else "as short as possible, because tasks have no overhead"
    )


def _conclusion_without_windows(found: Suitability, cost: TaskCost) -> str:
    unknown = "no GPU of this pool was idle for the time of a task so far"
    if found.pays:
        return f"{unknown}, so nothing is predicted; admission opens such a load"
    return (
        f"it does not pay: its tasks are useful for {highest_useful_share(cost):.1%} of their time at most; {unknown}"
    )


def _conclusion(found: Suitability) -> str:
    if found.cost_ratio is None:
        return "it does not pay: no window is long enough for a task"
    pays = "it pays" if found.pays else "it does not pay"
    return f"{pays}: useful GPU time costs {found.cost_ratio:.0%} of ordinary GPU time"
