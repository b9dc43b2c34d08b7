"""`eflow suits`: the cost model of padding loads on idle windows; the simulator computes it, as the client has none."""

import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool, run
from elasticflow.cli.option_values import duration_of
from elasticflow.cli.replay import start_simulator
from elasticflow.client.client import Client
from elasticflow.shared.messages.pool_config import PoolConfig


def suits(
    task: Annotated[str, typer.Option("--task", metavar="TIME", help="Computation of one task: 10.9s, 2m.")],
    overhead: Annotated[str, typer.Option("--overhead", metavar="TIME", help="The rest of each task.")] = "0s",
    start_stop: Annotated[
        str, typer.Option("--start-stop", metavar="TIME", help="Start and end of a runner, once in each window.")
    ] = "0s",
    windows: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV file of idle windows, gpu,start_s,end_s, instead of the pool's."),
    ] = None,
    price_ratio: Annotated[
        float | None,
        typer.Option(
            "--price-ratio",
            metavar="RATIO",
            min=0.0,
            max=1.0,
            show_default=False,
            help="Price of padding GPU time over that of ordinary GPU time. Default: the pool's; with --windows 0.1.",
        ),
    ] = None,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Predict whether padding tasks of this kind pay in the idle windows of the
    pool, as admission does for a load.

    Exit code 0 if they pay, 1 if not. Without any idle window so far, admission
    opens every load, and the exit code is 0.

    \b
    Examples:
      eflow suits --task 10.9s --overhead 2.8s --start-stop 7s
      eflow suits --task 1s --overhead 0.2s --windows windows.csv
      eflow suits --task 1s --overhead 0.2s --json | jq .best_task_s
    """
    times_s = {
        "--task-s": duration_of(task, "--task"),
        "--overhead-s": duration_of(overhead, "--overhead"),
        "--start-stop-s": duration_of(start_stop, "--start-stop"),
    }
    if not times_s["--task-s"]:
        raise typer.BadParameter("a task must take time", param_hint="--task")
    if windows is not None:
        config, windows_s = PoolConfig(), []  # the simulator reads the file
    else:
        least_open_s = sum(time_s or 0.0 for time_s in times_s.values())
        config, windows_s = run(_config_and_windows(least_open_s), nats_url=nats_url, pool=pool, data_dir=data_dir)
    arguments = [
        *(word for option, time_s in times_s.items() for word in (option, str(time_s or 0.0))),
        *("--price-ratio", str(config.padding_price_ratio if price_ratio is None else price_ratio)),
        *(["--windows", str(windows)] if windows is not None else []),
        *(["--json"] if as_json else []),
    ]
    with start_simulator("suits", *arguments, stdin=subprocess.PIPE) as simulator:
        simulator.communicate(json.dumps(windows_s).encode())
    raise typer.Exit(simulator.returncode)


def _config_and_windows(least_open_s: float) -> Callable[[Client], Awaitable[tuple[PoolConfig, list[float]]]]:
    """The pool's configuration, and the lengths of its idle windows in seconds, as admission takes them."""

    async def ask(client: Client) -> tuple[PoolConfig, list[float]]:
        client.require_operator()  # a tenant's view has no idle windows: all loads would seem to pay
        state = await client.state()
        return state.config, state.idle_windows_at(client.now_s(), least_open_s=least_open_s)

    return ask
