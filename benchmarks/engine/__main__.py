"""`python -m benchmarks.engine`: a step in both modes beside plain DDP, by size of the model and number of workers."""

import asyncio
import json
import os
import platform
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engine.elastic import Engine, running_engine
from benchmarks.engine.models import GLOBAL_BATCH_SIZE, Bitwise, BitwiseOfFour, Fast
from benchmarks.engine.plain import measure_plain
from benchmarks.engine.resizes import measure_resizes
from shared.runtime.logs import configure_logs

JOBS = {"fast": Fast, "bitwise_4": BitwiseOfFour, "bitwise_8": Bitwise}
MILLION_PARAMETERS = (1, 25)
NUM_WORKERS = (1, 2, 4)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Each mode's turns; the fastest median counts.")] = 3,
    steps: Annotated[int, typer.Option(min=3, max=30, help="Steps of one turn.")] = 12,
    as_json: Annotated[
        bool, typer.Option("--json", help="Only the JSON object, on standard output.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure on this machine, on CPUs, one thread a worker. Take the ratios, and the times as of this machine."""
    configure_logs(level="error")
    resizes = asyncio.run(measure_changes(rounds))
    result = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}, gloo",
        "global_batch_size": GLOBAL_BATCH_SIZE,
        "resizes": resizes,
        "seconds_by_num_gpus": stops_by_num_gpus(resizes),
        "rows": asyncio.run(measure(rounds, steps)),
    }
    text = json.dumps(result, indent=2)
    if out:
        out.write_text(text + "\n")
    if as_json:
        print(text)
    else:
        Console().print(_resizes_table(resizes))
        Console().print(_table(result))
        print(text)


async def measure(
    rounds: int,
    num_steps: int,
    sizes: tuple[int, ...] = MILLION_PARAMETERS,
    worker_counts: tuple[int, ...] = NUM_WORKERS,
) -> list[dict[str, Any]]:
    """One row for each size and number of workers. The modes take turns: what else the machine does meets them all."""
    rows: list[dict[str, Any]] = []
    async with running_engine() as engine:
        for million_parameters, num_workers in product(sizes, worker_counts):
            turns = [await _turn(engine, million_parameters, num_workers, num_steps) for _ in range(rounds)]
            row: dict[str, Any] = {"million_parameters": million_parameters, "num_workers": num_workers}
            rows.append(row | {mode: min(turn[mode] for turn in turns) for mode in turns[0]})
    return rows


async def measure_changes(rounds: int, sizes: tuple[int, ...] = MILLION_PARAMETERS) -> list[dict[str, Any]]:
    """Rows of `resizes`, for each size."""
    rows: list[dict[str, Any]] = []
    async with running_engine() as engine:
        for million_parameters in sizes:
            rows += await measure_resizes(engine, million_parameters=million_parameters, rounds=rounds)
    return rows


def stops_by_num_gpus(resizes: list[dict[str, Any]]) -> dict[str, float]:
    """The longest median stop of a change to so many workers: `eflow simulate --overhead "measured FILE"` reads it."""
    by_num_gpus: dict[str, float] = {}
    for row in resizes:
        num_gpus = row["change"].split()[-1]
        by_num_gpus[num_gpus] = max(row["stop_s"], by_num_gpus.get(num_gpus, 0.0))
    return dict(sorted(by_num_gpus.items()))


async def _turn(
    engine: Engine, million_parameters: int, num_workers: int, num_steps: int
) -> dict[str, float]:
    step_s = {
        f"{mode}_step_s": await engine.measure(
            job, million_parameters=million_parameters, num_workers=num_workers, num_steps=num_steps
        )
        for mode, job in JOBS.items()
    }
    plain_s = await asyncio.to_thread(
        measure_plain, million_parameters=million_parameters, num_workers=num_workers, num_steps=num_steps
    )
    return {"plain_step_s": plain_s} | step_s


def _resizes_table(resizes: list[dict[str, Any]]) -> Table:
    table = Table(title="A change of workers, milliseconds")
    for column in (
        "parameters",
        "workers",
        "stop",
        "worst",
        "prepared in",
        "MB moved",
        "by restart",
        "after SIGKILL",
    ):
        table.add_column(column, justify="right")
    for row in resizes:
        beside = (row.get("restart_s"), row.get("crash_s"))
        table.add_row(
            f"{row['million_parameters']} M",
            row["change"],
            *(f"{row[name] * 1e3:.1f}" for name in ("stop_s", "worst_stop_s", "prepare_s")),
            f"{row['bytes_moved'] / 1e6:.1f}",
            *("" if seconds is None else f"{seconds * 1e3:.0f}" for seconds in beside),
        )
    return table


def _table(result: dict[str, Any]) -> Table:
    table = Table(title=f"One step, milliseconds (x plain DDP). {result['machine']}")
    for column in ("parameters", "workers", "plain DDP", *JOBS):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        plain_s = row["plain_step_s"]
        table.add_row(
            f"{row['million_parameters']} M",
            str(row["num_workers"]),
            f"{plain_s * 1e3:.1f}",
            *(f"{row[f'{m}_step_s'] * 1e3:.1f} ({row[f'{m}_step_s'] / plain_s:.2f})" for m in JOBS),
        )
    return table


if __name__ == "__main__":
    typer.run(main)
