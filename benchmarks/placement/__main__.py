"""`python -m benchmarks.placement`: the time of one placement decision in large pools, beside its goals."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.placement.decisions import measure_pool
from benchmarks.report import machine

GOALS_MS = {  # of the larger pool: placement's part of a planning cycle of 1 s
    "everything anew": 200.0,
    "3 jobs change": 20.0,
    "nothing to do": 2.0,
    "a node is lost": 500.0,
}


def main(
    quick: Annotated[bool, typer.Option(help="Few repetitions: to see that it runs, not to quote.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure placement decisions on this machine, on one core."""
    num_changes = 20 if quick else 300
    result = {
        "machine": machine(),
        "pools": [
            measure_pool(num_nodes=256, num_jobs=400, share_unpromised=0.0, num_changes=num_changes),
            measure_pool(num_nodes=256, num_jobs=400, share_unpromised=0.5, num_changes=num_changes),
            measure_pool(num_nodes=2048, num_jobs=10_000, share_unpromised=0.0, num_changes=num_changes),
            measure_pool(num_nodes=2048, num_jobs=10_000, share_unpromised=0.5, num_changes=num_changes),
        ],
    }
    text = json.dumps(result, indent=2)
    if out:
        out.write_text(text + "\n")
    if as_json:
        print(text)
    else:
        Console().print(_table(result))
        print(text)


def _table(result: dict[str, Any]) -> Table:
    table = Table(title=f"One placement decision, {result['machine']}; median, ms of CPU time (99th percentile)")
    table.add_column("pool")
    for what, goal_ms in GOALS_MS.items():
        table.add_column(f"{what}\n(<= {goal_ms:g} ms)", justify="right")
    table.add_column("in pieces", justify="right")
    table.add_column("migrations", justify="right")
    for pool in result["pools"]:
        cells = (pool["cpu_ms"][what] for what in GOALS_MS)
        table.add_row(
            f"{pool['num_gpus']:,} GPUs, {pool['num_jobs']:,} jobs, {pool['share_unpromised']:.0%} unpromised",
            *(f"{cell['p50']:.3g} ({cell['p99']:.3g})" for cell in cells),
            f"{pool['share_in_pieces']:.1%}",
            str(pool["migrations"]),
        )
    return table


if __name__ == "__main__":
    typer.run(main)
