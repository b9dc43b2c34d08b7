"""`simulate loads`: padding loads and idle windows in; tasks done, useful GPU time and fairness out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from elasticflow.simulator.command_inputs import reporting_errors
from elasticflow.simulator.padding.load_simulation import simulate_loads
from elasticflow.simulator.padding.loads import read_loads, require_long_windows
from elasticflow.simulator.padding.windows_and_loads import read_windows

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
