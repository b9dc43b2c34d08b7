"""NCCL in a group of one worker: does it survive torch's watchdog, and does its set-up disturb other work on the GPU?

A child process measures each, because a watchdog ends the process. On CPUs gloo takes NCCL's place: that shows only
that the parts run.
"""
# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from benchmarks.engine.device import Device
from benchmarks.report import Measured, Row
from elasticflow.services.executor.worker.elastic.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.elastic.nccl_transport import NcclTransport

_TIMEOUT_S = 1.0  # of a collective
_STUCK_S = 5.0  # longer than the time-out, and than what the watchdog waits then
_AFTERWARDS_S = 15.0
_SET_UP_S = 60.0
_CHILD_S = 120.0
_SOME_CYCLES = 100_000_000
_MATRIX_SIDE = {Device.CUDA: 8192, Device.CPU: 64}
_NUM_PRODUCTS = 400
_MIB = 1 << 20


def measure_watchdog(device: Device) -> Measured:
    """Exit codes of a process whose collective is stuck for longer than its time-out, by who made the group."""
    return {maker: _child("stuck", maker, device)["exit_code"] for maker in ("torch", "ours")}


def measure_communicator(device: Device) -> Measured:
    """Seconds of matrix products, alone and while another communicator is made beside them; then the memory of two."""
    return {**_child("jitter", "", device), "free_bytes": _child("memory", "", device).get("free_bytes")}


def _child(what: str, argument: str, device: Device) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.gpu.nccl", what, argument, device.value, folder]
        ended = subprocess.run(command, timeout=_CHILD_S, check=False)
        written = Path(folder) / "measured.json"
        measured = json.loads(written.read_text()) if written.exists() else {}
    return {"exit_code": ended.returncode, **measured}


def _connected(device: Device, store: dist.Store, timeout_s: float = _SET_UP_S) -> NcclTransport | GlooTransport:
    """A group of one worker."""
    never = threading.Event()
    if device == Device.CPU:
        return GlooTransport(store, 0, 1, timeout_s=timeout_s, aborted=never)
    return NcclTransport(store, 0, 1, device=torch.device("cuda", 0), timeout_s=timeout_s, aborted=never)


def _synchronize(device: Device) -> None:
    if device == Device.CUDA:
        torch.cuda.synchronize()


def _stuck(maker: str, device: Device, folder: Path) -> Measured:
    """A collective behind a kernel that takes longer than the time-out."""
    store = dist.FileStore(str(folder / "store"), 1)
    stuck_s, afterwards_s = (_STUCK_S, _AFTERWARDS_S) if device == Device.CUDA else (0.0, 0.0)
    group: Any
    if maker == "ours":
        group = _connected(device, store, _TIMEOUT_S).process_group
    else:
        library = "nccl" if device == Device.CUDA else "gloo"
        dist.init_process_group(library, store=store, rank=0, world_size=1, timeout=timedelta(seconds=_TIMEOUT_S))
        group = dist.distributed_c10d._get_default_group()
    numbers = torch.ones(1024, device=device.value)
    if device == Device.CUDA:
        _occupy(stuck_s)
    work = group.allreduce([numbers])
    time.sleep(stuck_s + afterwards_s)
    _synchronize(device)
    return {"sum_is_right": bool((numbers == 1).all()), "is_completed": work.is_completed()}


def _occupy(seconds: float) -> None:
    """The current stream. torch's kernel for it counts cycles."""
    sleep = torch.cuda._sleep  # pyright: ignore[reportPrivateUsage]
    sleep(_SOME_CYCLES)
    torch.cuda.synchronize()
    began_s = time.monotonic()
    sleep(_SOME_CYCLES)
    torch.cuda.synchronize()
    sleep(int(_SOME_CYCLES * seconds / (time.monotonic() - began_s)))


def _jitter(device: Device, folder: Path) -> Measured:
    side = _MATRIX_SIDE[device]
    matrix = torch.randn(side, side, device=device.value, dtype=torch.bfloat16)
    made = list[tuple[float, float]]()

    def make() -> None:
        began_s = time.monotonic()
        _connected(device, dist.FileStore(str(folder / "store"), 1))
        made.append((began_s, time.monotonic()))

    products: list[tuple[float, float]] = []
    while len(products) < _NUM_PRODUCTS or not made:
        began_s = time.monotonic()
        torch.mm(matrix, matrix)
        _synchronize(device)
        products.append((began_s, time.monotonic() - began_s))
        if len(products) == _NUM_PRODUCTS // 2:
            threading.Thread(target=make, daemon=True).start()
    (from_s, until_s) = made[0]
    alone = [took_s for began_s, took_s in products[10:] if began_s < from_s]
    beside = [took_s for began_s, took_s in products if from_s <= began_s < until_s]
    return {
        "made_in_s": until_s - from_s,
        "alone_s": statistics.median(alone),
        "alone_worst_s": max(alone),
        "beside_s": statistics.median(beside) if beside else None,
        "beside_worst_s": max(beside, default=None),
        "num_beside": len(beside),
    }


def _memory(device: Device, folder: Path) -> Measured:
    """Free bytes of the GPU before, with one communicator, and with two. Their groups have one worker: with peers NCCL
    keeps more."""
    torch.zeros(1, device=device.value)  # the context
    free_bytes, held = [_free_bytes(device)], list[NcclTransport | GlooTransport]()
    for number in range(2):
        held.append(_connected(device, dist.FileStore(str(folder / f"store-{number}"), 1)))
        held[-1].all_reduce(torch.ones(1024, device=device.value)).wait()
        _synchronize(device)
        free_bytes.append(_free_bytes(device))
    return {"free_bytes": free_bytes}


def _free_bytes(device: Device) -> int:
    return torch.cuda.mem_get_info(0)[0] if device == Device.CUDA else psutil.virtual_memory().available


def watchdog_rows(measured: Measured) -> Iterable[Row]:
    ours, theirs = (
        "survives" if measured[maker] == 0 else f"ends with {measured[maker]}" for maker in ("ours", "torch")
    )
    yield Row("a process whose collective outlasts its time-out of 1 s", ours, "survives", f"torch's group: {theirs}")


def communicator_rows(measured: Measured) -> Iterable[Row]:
    if measured.get("beside_s"):
        yield Row(
            "matrix product while a communicator is made, median (worst)",
            f"{measured['beside_s'] * 1e3:.2f} ({measured['beside_worst_s'] * 1e3:.2f}) ms",
            beside=f"alone {measured['alone_s'] * 1e3:.2f} ({measured['alone_worst_s'] * 1e3:.2f}) ms",
        )
    if free_bytes := measured.get("free_bytes"):
        first, second = (before - after for before, after in pairwise(free_bytes))
        yield Row("memory of a second communicator", f"{second / _MIB:.0f} MiB", beside=f"the first {first / _MIB:.0f}")


if __name__ == "__main__":
    what, argument, device, folder = sys.argv[1], sys.argv[2], Device(sys.argv[3]), Path(sys.argv[4])
    match what:
        case "stuck":
            result = _stuck(argument, device, folder)
        case "memory":
            result = _memory(device, folder)
        case _:
            result = _jitter(device, folder)
    (folder / "measured.json").write_text(json.dumps(result))
