"""NCCL in a group of one worker: does it survive torch's watchdog, and does its set-up disturb other work on the GPU?

A child process measures each, because a watchdog ends the process.
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

import torch
import torch.distributed as dist

from benchmarks.report import Measured, Row
from elasticflow.services.executor.worker.elastic.nccl_transport import NcclTransport

_TIMEOUT_S = 1.0  # of a collective
_STUCK_S = 5.0  # longer than the time-out, and than what the watchdog waits then
_AFTERWARDS_S = 15.0
_CHILD_S = 120.0
_SOME_CYCLES = 100_000_000
_MATRIX_SIDE = 8192
_NUM_PRODUCTS = 400
_MIB = 1 << 20


def measure_watchdog() -> Measured:
    """Exit codes of a process whose collective is stuck for longer than its time-out, by who made the group."""
    return {maker: _child("stuck", maker)["exit_code"] for maker in ("torch", "ours")}


def measure_communicator() -> Measured:
    """Seconds of matrix products, alone and while another communicator is made beside them; then the memory of two."""
    return {**_child("jitter", ""), "free_bytes": _child("memory", "").get("free_bytes")}


def _child(what: str, argument: str) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.gpu.nccl", what, argument, folder]
        ended = subprocess.run(command, timeout=_CHILD_S, check=False)
        written = Path(folder) / "measured.json"
        measured = json.loads(written.read_text()) if written.exists() else {}
    return {"exit_code": ended.returncode, **measured}


def _stuck(maker: str, folder: Path) -> Measured:
    """A collective behind a kernel that takes longer than the time-out."""
    device = torch.device("cuda", 0)
    store = dist.FileStore(str(folder / "store"), 1)
    group: Any
    if maker == "ours":
        transport = NcclTransport(store, 0, 1, device=device, timeout_s=_TIMEOUT_S, aborted=threading.Event())
        group = transport.process_group
    else:
        dist.init_process_group("nccl", store=store, rank=0, world_size=1, timeout=timedelta(seconds=_TIMEOUT_S))
        group = dist.distributed_c10d._get_default_group()
    numbers = torch.ones(1024, device=device)
    _occupy(_STUCK_S)
    work = group.allreduce([numbers])
    time.sleep(_STUCK_S + _AFTERWARDS_S)
    torch.cuda.synchronize()
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


def _jitter(folder: Path) -> Measured:
    device = torch.device("cuda", 0)
    matrix = torch.randn(_MATRIX_SIDE, _MATRIX_SIDE, device=device, dtype=torch.bfloat16)
    made = list[tuple[float, float]]()

    def make() -> None:
        began_s = time.monotonic()
        store = dist.FileStore(str(folder / "store"), 1)
        NcclTransport(store, 0, 1, device=device, timeout_s=60.0, aborted=threading.Event())
        made.append((began_s, time.monotonic()))

    products: list[tuple[float, float]] = []
    for number in range(_NUM_PRODUCTS):
        began_s = time.monotonic()
        torch.mm(matrix, matrix)
        torch.cuda.synchronize()
        products.append((began_s, time.monotonic() - began_s))
        if number == _NUM_PRODUCTS // 2:
            threading.Thread(target=make, daemon=True).start()
    while not made:
        time.sleep(0.1)
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


def _memory(folder: Path) -> Measured:
    """Free bytes of the GPU before, with one communicator, and with two. Their groups have one worker: with peers NCCL
    keeps more."""
    device = torch.device("cuda", 0)
    torch.zeros(1, device=device)  # the context
    free_bytes, held = [torch.cuda.mem_get_info(device)[0]], list[NcclTransport]()
    for number in range(2):
        store = dist.FileStore(str(folder / f"store-{number}"), 1)
        held.append(NcclTransport(store, 0, 1, device=device, timeout_s=60.0, aborted=threading.Event()))
        held[-1].all_reduce(torch.ones(1024, device=device)).wait()
        torch.cuda.synchronize()
        free_bytes.append(torch.cuda.mem_get_info(device)[0])
    return {"free_bytes": free_bytes}


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
    what, argument, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    match what:
        case "stuck":
            result = _stuck(argument, folder)
        case "memory":
            result = _memory(folder)
        case _:
            result = _jitter(folder)
    (folder / "measured.json").write_text(json.dumps(result))
