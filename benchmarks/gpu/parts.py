"""The parts of the GPU runs, each measured in a process of its own: an error of CUDA ends only one of them."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.engine import schedules, steady
from benchmarks.engine.device import Device
from benchmarks.gpu import copies, hashes, marked_tests, nccl
from benchmarks.report import Measured, Row
from elasticflow.shared.runtime.process.logs import configure_logs

_NUM_SCHEDULES = 10
_VIRTUAL_NODES = 8
_TAIL = 2000  # characters of an error's output
_CPU_PATIENCE = 4  # times a part's limit on CPUs: other programs may take most of them, and nobody rents them


class PartName(StrEnum):
    """Also the name of its numbers in the JSON object. The most important ones come first."""

    TESTS = "tests"
    WATCHDOG = "watchdog"
    HASHES = "hashes"
    KILLS = "kills"
    STEADY = "steady"
    COMPILED_JOIN = "compiled_join"
    BANDWIDTH = "bandwidth"
    CHECKPOINT = "checkpoint"
    COMMUNICATOR = "communicator"
    MEMORY = "memory"
    WARM_START = "warm_start"
    SCHEDULES = "schedules"


@dataclass(frozen=True, slots=True)
class Part:
    """measure: of the device, and whether the work shall be small. limit_s: on a GPU; then the part is given up."""

    measure: Callable[[Device, bool], Any]
    rows: Callable[[Any], Iterable[Row]]
    limit_s: float


def _measure_steady(device: Device, quick: bool) -> list[Measured]:
    sizes = {"resnet50": 1, "gpt2": 1} if quick else {"resnet50": 25, "gpt2": 124}
    return [
        steady.measure_steady(
            model,
            million_parameters=size,
            num_workers=1,
            rounds=2 if quick else 30,
            modes=("fast", "bitwise_8"),
            device=device,
        )
        for model, size in sizes.items()
    ]


def _steady_rows(measured: list[Measured]) -> Iterable[Row]:
    for row in measured:
        ratios = ", ".join(f"{mode} {row[f'{mode}_ratio']:.3f}" for mode in ("fast", "bitwise_8"))
        plain = f"plain DDP {row['plain_step_s'] * 1e3:.1f} ms"
        yield Row(f"step of {row['model']} on one worker, times plain DDP", ratios, beside=plain)


async def _schedules(device: Device, quick: bool) -> Measured:
    return await schedules.prove(_VIRTUAL_NODES, range(1 if quick else _NUM_SCHEDULES), device=device)


def _schedule_rows(measured: Measured) -> Iterable[Row]:
    wrong = len(measured["differences"]) + len(measured["unfinished"])
    what = f"{measured['schedules']} random schedules, {measured['killed']} kills: states that differ, or no end"
    yield Row(what, str(wrong), "0", f"{measured['states_compared']} states compared")


PARTS: Mapping[PartName, Part] = {
    PartName.TESTS: Part(
        lambda _, quick: marked_tests.measure_tests("tests/training/test_gpus.py" if quick else "tests"),
        marked_tests.rows,
        600,
    ),
    PartName.WATCHDOG: Part(lambda device, _: nccl.measure_watchdog(device), nccl.watchdog_rows, 120),
    PartName.HASHES: Part(
        lambda device, quick: hashes.measure_hashes(device, num_iterations=2 if quick else 20),
        hashes.hash_rows,
        300,
    ),
    PartName.KILLS: Part(
        lambda device, quick: hashes.measure_kills(device, num_workers=2 if quick else 4), hashes.kill_rows, 400
    ),
    PartName.STEADY: Part(_measure_steady, _steady_rows, 300),
    PartName.COMPILED_JOIN: Part(
        lambda device, quick: hashes.measure_compiled_join(device, num_iterations=120 if quick else 800),
        hashes.compiled_rows,
        200,
    ),
    PartName.BANDWIDTH: Part(
        lambda device, quick: copies.measure_bandwidth(device, num_bytes=1 << (20 if quick else 30)),
        copies.bandwidth_rows,
        60,
    ),
    PartName.CHECKPOINT: Part(
        lambda device, quick: copies.measure_checkpoint(
            device, million_parameters=1 if quick else 190, rounds=1 if quick else copies.ROUNDS
        ),
        copies.checkpoint_rows,
        200,
    ),
    PartName.COMMUNICATOR: Part(lambda device, _: nccl.measure_communicator(device), nccl.communicator_rows, 120),
    PartName.MEMORY: Part(
        lambda device, quick: copies.measure_memory(device, million_parameters=1 if quick else 25),
        copies.memory_rows,
        120,
    ),
    PartName.WARM_START: Part(
        lambda device, quick: copies.measure_warm_start(device, rounds=1 if quick else copies.ROUNDS),
        copies.warm_start_rows,
        240,
    ),
    PartName.SCHEDULES: Part(lambda device, quick: asyncio.run(_schedules(device, quick)), _schedule_rows, 500),
}


def measured_in_a_child(name: PartName, device: Device, *, quick: bool) -> Measured:
    """What the part measured, or the "error" for which there is nothing."""
    part = PARTS[name]
    limit_s = part.limit_s * (1 if device == Device.CUDA else _CPU_PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "benchmarks.gpu.parts", name, device, str(int(quick)), str(out)]
        try:
            ended = subprocess.run(
                command, timeout=limit_s, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except subprocess.TimeoutExpired as error:
            return {"error": f"not finished after {limit_s:.0f} s: {_text(error.output)[-_TAIL:]}"}
        return json.loads(out.read_text()) if out.exists() else {"error": ended.stdout[-_TAIL:]}


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


if __name__ == "__main__":
    configure_logs(level="error")
    name, device, quick, out = sys.argv[1:]
    result = PARTS[PartName(name)].measure(Device(device), quick == "1")
    Path(out).write_text(json.dumps(result))
