"""`python -m benchmarks.gpu`: all that only a GPU can show, within the time for which a machine is lent.

python -m benchmarks.gpu --lease 540 --out benchmarks/results/gpu.json
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from benchmarks.engine.parts import Device
from benchmarks.gpu import wheels
from benchmarks.gpu.lease import Ended, Lease, Running
from benchmarks.gpu.parts import PARTS, Part, PartName
from benchmarks.report import TABLE_WIDTH, Measured, Row, RowsOf, table, where_and_when

_CPU_PATIENCE = 1000.0  # times a part's estimate on CPUs, as long as the lease lasts: no one rents them
_QUICK_PARTS = 2  # of a quick run at a time: its times count for nothing
_LOOPS_S = 90.0  # to compile the scheduler, beside the first parts


def main(
    lease: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="End within this time.")] = 540.0,
    out: Annotated[Path, typer.Option(help="Write the JSON object to this file after each part.")] = Path(
        "build/gpu.json"
    ),
    only: Annotated[list[PartName] | None, typer.Option(help="Measure this part alone; may be repeated.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure also what the file has already.")] = False,
    device: Annotated[Device, typer.Option(help="cpu: to see that the parts run where there is no GPU.")] = Device.CUDA,
    quick: Annotated[bool, typer.Option("--quick", help="Little work: to see that it runs, not to quote.")] = False,
) -> None:
    """Measure the engine on the GPU of this machine, the most important parts first.

    A part that no longer fits into the time is skipped. What the file has already, without an error, is not measured
    again. Exit code 1 if a part failed or was skipped.
    """
    if device == Device.CUDA and not _has_driver():
        raise typer.BadParameter(
            "this machine has no driver of NVIDIA; --device cpu --quick runs the same on CPUs", param_hint="--device"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that no part outlives this process
    before = os.getloadavg()[0]
    with out.with_suffix(".log").open("ab") as log, tempfile.TemporaryDirectory() as folder:
        run = _Run(Lease(lease, _environment(""), log), out, device, quick, Path(folder))
        try:
            run.run([name for name in only or _all(quick) if again or not run.has(name)])
        finally:
            run.stop()
        run.written(**where_and_when(before), device=device.value, lease_s=lease, torch=version("torch"))
    result = run.result
    Console(width=TABLE_WIDTH).print(table("One GPU", result, {name: _rows_of(name) for name in PartName}))
    raise typer.Exit(int(any({"error", "skipped"} & result.get(name, {}).keys() for name in PartName)))


def _has_driver() -> bool:
    """Whether there is a driver: found without torch, whose import takes seconds of the lease."""
    return bool(shutil.which("nvidia-smi")) or any(map(os.path.exists, ("/dev/nvidiactl", "/proc/driver/nvidia")))


def _all(quick: bool) -> list[PartName]:
    return [name for name, part in PARTS.items() if not (quick and part.is_more)]


def _environment(site: str) -> dict[str, str]:
    """site: folder of packages that were installed for the lease; "" if none were."""
    paths = [site, str(wheels.ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": os.pathsep.join(filter(None, [site and f"{site}/bin", os.environ.get("PATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }


class _Beside(NamedTuple):
    """A part that runs beside others. name: None if it measures nothing."""

    name: PartName | None
    running: Running


class _Run:
    """The parts of one lease, and what they measured."""

    def __init__(self, lease: Lease, out: Path, device: Device, quick: bool, folder: Path) -> None:
        self.result: Measured = json.loads(out.read_text()) if out.exists() else {}
        self._lease, self._out, self._device, self._quick, self._folder = lease, out, device, quick, folder
        self._beside: list[_Beside] = []
        self._present: Running | None = None

    def has(self, name: PartName) -> bool:
        part = self.result.get(name, {"error": ""})
        return "error" not in part and "skipped" not in part

    def run(self, names: list[PartName]) -> None:
        try:
            self._lease.environment = _environment(site := wheels.install_missing())
            self.written(packages="of .whl" if site else "of this Python", packages_s=round(self._lease.used_s, 1))
        except (wheels.IncompleteWheels, subprocess.CalledProcessError) as error:
            why = f"{error} {getattr(error, 'output', None) or ''}"
            self.written(**{name: {"error": f"the packages are missing: {why}"} for name in names})
            return
        loops = [sys.executable, "-m", "elasticflow.shared.scheduling.warm_up"]
        self._beside.append(_Beside(None, self._lease.start("loops", loops, needs_s=_LOOPS_S)))
        for name in names:
            if refusal := self._lease.refusal(PARTS[name].needs_s):
                self.written(**{name: {"skipped": refusal}})
            else:
                self._measure(name, PARTS[name])
        while self._beside:
            self._await_oldest()

    def _await_oldest(self) -> None:
        """Await the oldest of the parts that run beside others."""
        name, running = self._beside[0]
        ended = running.wait()
        self._beside.pop(0)
        if name is not None:
            self._collect(name, ended)

    def _measure(self, name: PartName, part: Part) -> None:
        print(f"{self._lease.used_s:4.0f} s: {name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "benchmarks.gpu.parts", name, self._device, str(int(self._quick))]
        patience = {} if self._device == Device.CUDA else {"patience": _CPU_PATIENCE}
        running = self._lease.start(name, [*command, self._file(name)], needs_s=part.needs_s, **patience)
        if part.is_beside or self._quick:
            self._beside.append(_Beside(name, running))
            while len(self._beside) > _QUICK_PARTS and self._quick:
                self._await_oldest()
            return
        self._present = running
        ended = running.wait()
        self._present = None
        self._collect(name, ended)

    def _file(self, name: PartName) -> Path:
        return self._folder / f"{name}.json"

    def _collect(self, name: PartName, ended: Ended) -> None:
        file = self._file(name)
        measured: Measured = json.loads(file.read_text()) if file.exists() else {"measured": {}, "rows": []}
        problem = ended.problem
        if ended.left_behind:
            problem = f"it left {ended.left_behind} processes behind"
        if problem:
            measured["error"] = f"{problem}: see {self._out.with_suffix('.log').name}"
        self.written(**{name: {"took_s": round(ended.took_s, 1), **measured}})

    def written(self, **more: object) -> None:
        """The result with more, in the file too."""
        self.result |= more
        self.result["used_s"] = round(self._lease.used_s, 1)
        self._out.write_text(json.dumps(self.result, indent=2) + "\n")

    def stop(self) -> None:
        """What still runs."""
        for running in (*(each.running for each in self._beside), *filter(None, [self._present])):
            running.end()


def _rows_of(name: PartName) -> RowsOf:
    """The rows of the part, and why it has no or not all numbers."""

    def rows(part: Measured) -> list[Row]:
        found = [Row(*row) for row in part.get("rows", ())]
        for kind in ("error", "skipped"):
            if kind in part:
                found.append(Row(name, f"{kind}: {part[kind]}"))
        return found

    return rows


if __name__ == "__main__":
    typer.run(main)
