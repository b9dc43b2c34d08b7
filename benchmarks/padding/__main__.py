"""`python -m benchmarks.padding`: padding loads beside their goals and the operating system's own times."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.padding import beside_jobs, kills, preempted, runners, whole_loads
from benchmarks.report import RowsOf, report, where_and_when
from elasticflow.shared.runtime.process.logs import configure_logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """scale: of the work, 1 for numbers to quote. num_kills, num_tasks: of the part `kills`."""

    scale: float
    num_kills: int
    num_tasks: int

    def scaled(self, number: int) -> int:
        return max(int(number * self.scale), 1)


@dataclass(frozen=True, slots=True)
class Part:
    measure: Callable[[Options], Awaitable[Any]]  # what the JSON object has under the name of the part
    rows: RowsOf


PARTS: Mapping[str, Part] = {
    "runners": Part(lambda options: runners.measure_runners(scale=options.scale), runners.rows),
    "whole_loads": Part(
        lambda options: whole_loads.measure_whole_loads(
            num_empty_tasks=options.scaled(20_000), num_tasks=options.scaled(400)
        ),
        whole_loads.whole_load_rows,
    ),
    "beside_jobs": Part(
        lambda options: beside_jobs.measure_beside_jobs(num_rounds=options.scaled(100), round_s=1.0),
        beside_jobs.beside_jobs_rows,
    ),
    "preempted": Part(
        lambda options: preempted.measure_preempted(num_tasks=options.scaled(80)),
        preempted.preempted_rows,
    ),
    "useful_shares": Part(
        lambda options: preempted.measure_useful_shares(
            num_windows=options.scaled(15),
            mean_gaps_s=(2.5, 5.0, 10.0, 2.5, 5.0, 10.0),
            long_gap_s=30.0,
            seed=0,
        ),
        preempted.useful_share_rows,
    ),
    "idle": Part(lambda options: whole_loads.measure_idle(seconds=options.scaled(60)), whole_loads.idle_rows),
    "placements": Part(
        lambda options: beside_jobs.measure_placements(num_rounds=options.scaled(20)), beside_jobs.placement_rows
    ),
    "fairness": Part(
        lambda options: whole_loads.measure_fairness(num_windows=options.scaled(5), window_s=10.0),
        whole_loads.fairness_rows,
    ),
    "kills": Part(
        lambda options: kills.measure_kills(num_kills=options.num_kills, num_tasks=options.num_tasks, seed=0),
        kills.rows,
    ),
}


def main(
    only: Annotated[str, typer.Option(help="Run these parts, separated by commas.")] = ",".join(PARTS),
    quick: Annotated[bool, typer.Option(help="A tenth of the work: to see that it runs, not to quote.")] = False,
    num_kills: Annotated[int, typer.Option("--kills", min=1, help="Kill so many processes in the part `kills`.")] = 16,
    num_tasks: Annotated[int, typer.Option("--tasks", min=1, help="Execute so many tasks in the part `kills`.")] = 600,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure padding loads on this machine: real processes on CPU slots."""
    names = only.split(",")
    if unknown := sorted(set(names).difference(PARTS)):
        raise typer.BadParameter(f"unknown part {unknown[0]!r}; the parts are {', '.join(PARTS)}", param_hint="--only")
    configure_logs(level="error")
    options = Options(scale=0.1 if quick else 1.0, num_kills=num_kills, num_tasks=num_tasks)
    result = asyncio.run(_measure(names, options))
    rows_of = {name: part.rows for name, part in PARTS.items()}
    report("Padding loads", result, rows_of, as_json=as_json, out=out)


async def _measure(names: list[str], options: Options) -> dict[str, Any]:
    before = os.getloadavg()[0]
    result = {name: await PARTS[name].measure(options) for name in names}
    return {**where_and_when(before), **result}


if __name__ == "__main__":
    typer.run(main)
