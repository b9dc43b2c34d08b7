"""`python -m examples.demo`: exit 0 only if all promises are made and kept, no task is lost, and the ledger
replays."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from elasticflow.shared.library_imports import INTERRUPTED, ending_at_interrupt

with ending_at_interrupt():
    import psutil
    import typer

    from elasticflow.local.up_plan import UpPlan
    from elasticflow.shared.errors import ElasticFlowError
    from elasticflow.shared.messages.pool_config import PoolConfig
    from elasticflow.shared.runtime.process.logs import configure_logs
    from elasticflow.shared.runtime.process.terminal import console
    from examples.demo.cast import cast
    from examples.demo.performance import perform
    from examples.demo.report import as_json, busy_line, draw, load_is_complete, load_line, rows, table


def main(
    out: Annotated[Path, typer.Option(help="Folder for logs, ledger, table and picture; emptied first.")] = Path(
        "demo-output"
    ),
    nodes: Annotated[int, typer.Option(min=1, max=8)] = 2,
    slots: Annotated[int, typer.Option(min=1, max=8, help="CPU slots of each node.")] = 4,
) -> None:
    """Train real jobs on this machine, to their deadlines, on slots that grow and shrink under them."""
    os.environ.pop("NATS_URL", None)  # the demonstration has a server of its own
    os.environ["EF_PRELOAD"] = "sklearn.datasets"  # two of the three kinds import it
    configure_logs(level="error")
    terminal = console()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    plan = UpPlan(
        data_dir=out / "pool",
        num_nodes=nodes,
        slots_per_node=slots,
        config=PoolConfig(throughput_margin=0.35, resize_cost_s=3.0, deadline_slack_s=2.0, stop_free=True),
    )
    if busy := busy_line(psutil.getloadavg()[0], psutil.cpu_count() or 1):
        terminal.print(busy, style="yellow", highlight=False, soft_wrap=True)
    terminal.print(f"Starting NATS, four services and {nodes} nodes of {slots} CPU slots; logs in {out}/pool ...")
    try:
        performance = asyncio.run(perform(cast(), plan, terminal, out / "ledger.eflow"))
    except ElasticFlowError as error:
        terminal.print(str(error), style="red")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    results = rows(performance)
    (out / "jobs.json").write_text(json.dumps(as_json(results), indent=2) + "\n")
    draw(performance, results, out / "gpus.png")
    terminal.print(table(results))
    complete = load_is_complete(performance)
    terminal.print(load_line(performance), highlight=False, soft_wrap=True, style="" if complete else "bold red")
    verified = subprocess.run(
        [sys.executable, "-m", "elasticflow.simulator", "replay", str(out / "ledger.eflow"), "--verify"],
        check=False,
    )
    terminal.print(f"GPUs over time: {out}/gpus.png   numbers: {out}/jobs.json   ledger: {out}/ledger.eflow")
    terminal.print(f"look at it in a browser: .venv/bin/eflow ui {out}/ledger.eflow", highlight=False, soft_wrap=True)
    broken = [row.job_id for row in results if not row.kept]
    if broken:
        terminal.print(f"promises broken, or jobs failed or wrongly decided: {', '.join(broken)}", style="bold red")
    raise typer.Exit(1 if broken or not complete or verified.returncode else 0)


if __name__ == "__main__":
    typer.run(main)
