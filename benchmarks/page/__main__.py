"""`python -m benchmarks.page`: the page of `eflow ui` in a browser, beside its goals.

Needs Debian's Chromium and the extra `page`. A real nats-server, `eflow ui` as a process, and one browser.
"""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.page.ledgers import large_history
from benchmarks.page.screen import (
    drawing_rows,
    logs_rows,
    measure_drawing,
    measure_logs,
    measure_quotes,
    measure_scrubbing,
    quote_rows,
    scrubbing_rows,
)
from benchmarks.page.served_pool import measure_server, served_pool, server_rows
from benchmarks.report import Measured, RowsOf, report, where_and_when
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.logs import configure_logs

ROWS: dict[str, RowsOf] = {
    "drawing": drawing_rows,
    "scrubbing": scrubbing_rows,
    "quotes": quote_rows,
    "logs": logs_rows,
    "server": server_rows,
}


def main(
    only: Annotated[str, typer.Option(help="Measure these parts, separated by commas.")] = ",".join(ROWS),
    num_messages: Annotated[int, typer.Option("--messages", min=10_000, help="Of the large ledger.")] = 100_000,
    num_jobs: Annotated[int, typer.Option("--jobs", min=10, help="Live jobs of the large ledger.")] = 1_000,
    quick: Annotated[bool, typer.Option(help="A tenth of the work: to see that it runs, not to quote.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure the page in a browser on this machine."""
    names = only.split(",")
    if unknown := sorted(set(names).difference(ROWS)):
        raise typer.BadParameter(f"unknown part {unknown[0]!r}; the parts are {', '.join(ROWS)}", param_hint="--only")
    configure_logs(level="error")
    result = asyncio.run(_measure(names, num_messages, num_jobs, scale=0.1 if quick else 1.0))
    report("The page", result, ROWS, as_json=as_json, out=out)


async def _measure(names: list[str], num_messages: int, num_jobs: int, *, scale: float) -> Measured:
    load_before = os.getloadavg()[0]
    found: Measured = {}

    def started(name: str) -> bool:
        if name in names:
            typer.echo(f"{name} ...", err=True)
        return name in names

    def scaled(count: int) -> int:
        return max(4, round(scale * count))

    if started("quotes"):
        found["quotes"] = await measure_quotes(num_steps=scaled(60))
    if started("logs"):
        found["logs"] = await measure_logs(seconds=scaled(20))
    if set(names) - {"quotes", "logs"}:
        typer.echo(f"a ledger of {num_messages:,} messages ...", err=True)
        history = large_history(num_messages, num_jobs, SystemClock().now_s())
        if {"drawing", "server"} & set(names):
            async with served_pool(history.messages) as pool:
                if started("server"):
                    found["server"] = await measure_server(pool, seconds=scaled(20), num_viewers=50)
                if started("drawing"):
                    found["drawing"] = await measure_drawing(
                        pool, num_views=scaled(20), num_events=scaled(40), seconds=scaled(10)
                    )
        if started("scrubbing"):
            found["scrubbing"] = await measure_scrubbing(history, num_steps=scaled(200))
    return {**where_and_when(load_before), **found}


if __name__ == "__main__":
    typer.run(main)
