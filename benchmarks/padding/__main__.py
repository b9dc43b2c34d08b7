"""`python -m benchmarks.padding`: the times of runners beside their goals and the operating system's own times."""

import asyncio
import json
import os
import platform
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.padding.runners import (
    measure_gaps,
    measure_preemption,
    measure_start,
    measure_throughput,
    running_launcher,
)
from elasticflow.shared.runtime.process.logs import configure_logs

_GIB = 1 << 30


def main(
    quick: Annotated[bool, typer.Option(help="A tenth of the work: to see that it runs, not to quote.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure runners on this machine: real processes on CPU slots."""
    configure_logs(level="error")
    result = asyncio.run(_measure(0.1 if quick else 1.0))
    text = json.dumps(result, indent=2)
    if out:
        out.write_text(text + "\n")
    if as_json:
        print(text)
    else:
        Console().print(_table(result))
        print(text)


async def _measure(scale: float) -> dict[str, Any]:
    async with running_launcher() as runners:
        return {
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "start": await measure_start(runners, num_rounds=int(200 * scale)),
            "gaps": await measure_gaps(runners, num_bundles=int(1000 * scale)),
            "throughput": await measure_throughput(runners, num_bundles=int(1000 * scale)),
            "preemption": await measure_preemption(runners, num_rounds=int(200 * scale), num_bytes=1),
            "preemption_1_gib": await measure_preemption(runners, num_rounds=int(50 * scale), num_bytes=_GIB),
        }


def _table(result: dict[str, Any]) -> Table:
    start, gaps = result["start"], result["gaps"]
    table = Table(title=f"Runners of padding loads, {result['machine']}")
    for column in ("what", "measured", "goal", "beside it, in the same run"):
        table.add_column(column)
    for percentile, goal in (("p50", "<= 300 ms"), ("p99", "")):
        beside = f"python -c pass: {start['python_c_pass_ms'][percentile]:.1f} ms"
        table.add_row(f"start, {percentile}", f"{start['start_ms'][percentile]:.1f} ms", goal, beside)
    for where in ("within", "between"):
        gap = gaps[f"{where}_ms"]
        beside = f"p99 {gap['p99'] * 1e3:.0f} µs"
        table.add_row(f"gap {where} bundles, p50", f"{gap['p50'] * 1e3:.0f} µs", "<= 1,000 µs", beside)
    rate = f"{result['throughput']['tasks_per_s']:,.0f}/s"
    table.add_row("empty tasks in bundles of 100", rate, ">= 5,000/s", "")
    for key, what in (("preemption", "preemption"), ("preemption_1_gib", "preemption, 1 GiB of memory")):
        measured = result[key]
        for percentile, goal in (("p50", "<= 10 ms"), ("p99", "<= 50 ms")):
            beside = (
                f"SIGKILL of sleep: {measured['sigkill_and_waitpid_ms'][percentile]:.1f} ms, "
                f"of an unused fork: {measured['unused_fork_ms'][percentile]:.1f} ms"
            )
            goal = goal if key == "preemption" else ""
            table.add_row(f"{what}, {percentile}", f"{measured['preempt_ms'][percentile]:.1f} ms", goal, beside)
    return table


if __name__ == "__main__":
    typer.run(main)
