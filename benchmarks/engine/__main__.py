"""`python -m benchmarks.engine`: resizes, losses and steps, beside torchrun, torchft and plain DDP.

python -m benchmarks.engine --with-torchft --out benchmarks/results/engine.json
"""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.engine import resizes, restores, stalls, steady, torchft, torchrun, transient
from benchmarks.engine.parts import Device, Options, Part
from benchmarks.engine.resizes import fitted, stops_by_num_gpus
from benchmarks.report import json_text
from elasticflow.shared.runtime.process.logs import configure_logs

PARTS: Mapping[str, Part] = {
    "resizes": Part(measure=resizes.measure, table=resizes.table),
    "secrets": Part(measure=resizes.measure_secrets, table=resizes.secrets_table),
    "torchrun": Part(measure=torchrun.measure, table=torchrun.table),
    "torchft": Part(measure=torchft.measure, table=torchft.table),
    "steady": Part(measure=steady.measure, table=steady.table),
    "stalls": Part(measure=stalls.measure, table=stalls.table),
    "restores": Part(measure=restores.measure, table=restores.table),
    "transient": Part(measure=transient.measure, table=transient.table),
}
_ON_GPUS = ("resizes", "steady", "stalls", "transient")
_TABLE_WIDTH = 140


def main(
    parts: Annotated[
        str, typer.Option(help=f"Run these of {', '.join(PARTS)}, separated by commas. Default: all of the device.")
    ] = "",
    sizes: Annotated[str, typer.Option(help="Train models of so many million parameters.")] = "1,25,100",
    device: Annotated[
        Device, typer.Option(help="Run the workers on CPU slots, or on this machine's GPUs, which they share.")
    ] = Device.CPU,
    rounds: Annotated[int, typer.Option(min=1, help="Repeat each resize and each step so many times.")] = 10,
    losses: Annotated[int, typer.Option(min=1, help="Kill a worker so many times in each round of the resizes.")] = 1,
    with_torchft: Annotated[
        bool, typer.Option("--with-torchft", help="Install torchft into a temporary folder for its part.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON object.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure on this machine, with one thread a worker. Ratios are comparable; times hold for this machine."""
    configure_logs(level="error")
    options = Options(
        million_parameters=tuple(map(int, sizes.split(","))),
        rounds=rounds,
        losses=losses,
        with_torchft=with_torchft,
        device=device,
    )
    result: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}, {device.value}"
    }
    chosen = parts.split(",") if parts else [*(PARTS if device == Device.CPU else _ON_GPUS)]
    if wrong := sorted(set(chosen) - set(PARTS if device == Device.CPU else _ON_GPUS)):
        raise typer.BadParameter(f"no part of {device.value} is named {', '.join(wrong)}", param_hint="--parts")
    for name in chosen:
        result[name] = PARTS[name].measure(options)
    if "resizes" in result:
        torchrun.set_beside(result["resizes"], result.get("torchrun", []))
        result["seconds_by_num_gpus"] = stops_by_num_gpus(result["resizes"])
        result["stop_model"] = fitted(result["resizes"])
    if not as_json:
        for name in chosen:
            Console(width=_TABLE_WIDTH).print(PARTS[name].table(result[name]))
    text = json_text(result, out)
    if as_json or not out:
        print(text)


if __name__ == "__main__":
    typer.run(main)
