"""`python -m benchmarks.gpu`: all that only a GPU can show, in one command that can be interrupted and repeated.

python -m benchmarks.gpu --out benchmarks/results/gpu.json
"""

import json
import os
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.engine.device import Device
from benchmarks.gpu.parts import PARTS, PartName, measured_in_a_child
from benchmarks.report import Measured, Row, RowsOf, report, where_and_when


def main(
    out: Annotated[Path, typer.Option(help="Write the JSON object to this file after each part.")],
    only: Annotated[list[PartName] | None, typer.Option(help="Measure this part alone; may be repeated.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure also what the file has already.")] = False,
    device: Annotated[Device, typer.Option(help="cpu: to see that the parts run where there is no GPU.")] = Device.CUDA,
    quick: Annotated[bool, typer.Option("--quick", help="Little work: to see that it runs, not to quote.")] = False,
) -> None:
    """Measure the engine on the GPUs of this machine; one is enough. About half an hour.

    Parts that the file has already are not measured again. Exit code 1 if a part failed.
    """
    if device == Device.CUDA and not torch.cuda.is_available():
        raise typer.BadParameter(
            "torch finds no GPU; --device cpu --quick runs the same on CPUs", param_hint="--device"
        )
    before = os.getloadavg()[0]
    result: Measured = json.loads(out.read_text()) if out.exists() else {}
    for name in only or list(PartName):
        if again or "error" in result.get(name, {"error": ""}):
            result[name.value] = measured_in_a_child(name, device, quick=quick)
        result |= {**where_and_when(before), "device": _device_name(device), "torch": torch.__version__}
        out.write_text(json.dumps(result, indent=2) + "\n")
    report("One GPU", result, {name: _rows_of(name) for name in PartName}, as_json=False, out=None)
    raise typer.Exit(int(any("error" in result.get(name, {}) for name in PartName)))


def _device_name(device: Device) -> str:
    return torch.cuda.get_device_name(0) if device == Device.CUDA else "cpu"


def _rows_of(name: PartName) -> RowsOf:
    """Of the part, or of the error for which it has no numbers."""

    def rows(measured: Measured) -> list[Row]:
        if "error" in measured:
            return [Row(name, f"error: {measured['error'].strip().splitlines()[-1]}")]
        return list(PARTS[name].rows(measured))

    return rows


if __name__ == "__main__":
    typer.run(main)
