"""The machine, and whether the fork server is without CUDA's driver: a process that has initialized it cannot fork."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import psutil
import torch
from torch.cuda import nccl

from benchmarks.engine.parts import Device
from benchmarks.report import Measured, Row
from elasticflow.services.executor.processes.launcher import Launcher
from elasticflow.shared.runtime.process.gpu_readings import GpuReader
from elasticflow.shared.runtime.process.local_hardware import installed_gpus

_DRIVER = "libcuda.so"
_WARM_S = 30.0  # until a warm worker has loaded it
_POLL_S = 0.1
_QUERY = "name,driver_version,memory.total,pstate,clocks.sm,clocks.max.sm,compute_mode,mig.mode.current"


def measure_host(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    """maps_driver: whether the fork server has CUDA's driver in its memory, beside a warm worker that has used it."""
    note(python=sys.version.split()[0], torch=torch.__version__, cuda=torch.version.cuda)
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
        note(nvidia_smi=subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())
    note(health=_health())
    note(**asyncio.run(_maps_of_the_fork_server(device)))
    if device == Device.CUDA:
        properties = torch.cuda.get_device_properties(0)
        note(
            nccl=list(nccl.version()),
            gpu=properties.name,
            memory_bytes=properties.total_memory,
        )


def _health() -> list[Measured]:
    """What an executor reads of each GPU; what the driver does not support is None."""
    reader = GpuReader([gpu.uuid for gpu in installed_gpus()])
    try:
        return [asdict(reading) for reading in reader.read().values()] if reader.open() else []
    finally:
        reader.close()


async def _maps_of_the_fork_server(device: Device) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(
            data_dir=Path(folder), node_id="host", on_event=lambda *_: None, device=device.value, warm_workers=1
        )
        await launcher.start()
        try:
            (server,) = psutil.Process().children()
            is_warm = False
            async with asyncio.timeout(_WARM_S):
                while not launcher.warm_pool.ready:
                    await asyncio.sleep(_POLL_S)
                (worker,) = launcher.warm_pool.ready.values()
                while not (is_warm := device == Device.CPU or _maps(worker)):
                    await asyncio.sleep(_POLL_S)
            return {"is_warm": is_warm, "maps_driver": _maps(server.pid)}
        finally:
            await launcher.close()


def _maps(pid: int) -> bool:
    return _DRIVER in Path(f"/proc/{pid}/maps").read_text()


def rows_of_host(measured: Measured) -> Iterable[Row]:
    if "nvidia_smi" in measured:
        yield Row("GPU", measured["nvidia_smi"])
    for gpu in measured.get("health", ()):
        unknown = ", ".join(name for name, value in gpu.items() if value is None)
        yield Row("what its driver does not report", unknown or "nothing", "nothing")
    if "maps_driver" in measured:
        found = f"maps {_DRIVER}" if measured["maps_driver"] else "without"
        yield Row("the fork server has CUDA's driver in its memory", found, "without")
