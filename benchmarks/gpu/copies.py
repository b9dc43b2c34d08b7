"""Copies between a GPU and its host, and what the engine adds to them: checkpoints, memory, warm starts."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.crew import Crew
from benchmarks.engine.device import Device
from benchmarks.engine.models import PerceptronOfEight
from benchmarks.engine.stage import stage
from benchmarks.engine.stalls import measure_stalls
from benchmarks.report import Measured, Row
from elasticflow.services.executor.processes.launcher import Launcher, WorkerEvent, WorkerHandle
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.from_worker import Started
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment

ROUNDS = 5
_MIB = 1 << 20
_WARM_UP_S = 15.0  # far above what a context and its libraries take
_TIMEOUT_S = 120.0
_NEVER = 1e6


def measure_bandwidth(device: Device, *, num_bytes: int = 1 << 30) -> Measured:
    """Bytes per second, by direction and kind of host memory."""
    on_device = torch.zeros(num_bytes, dtype=torch.uint8, device=device.value)
    measured: Measured = {"num_bytes": num_bytes}
    for kind, pinned in (("pageable", False), ("pinned", device == Device.CUDA)):
        on_host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        measured[f"{kind}_to_host"] = num_bytes / _median_s(lambda host=on_host: host.copy_(on_device), device)
        measured[f"{kind}_to_device"] = num_bytes / _median_s(lambda host=on_host: on_device.copy_(host), device)
    return measured


def _median_s(act: Callable[[], object], device: Device) -> float:
    taken: list[float] = []
    for _ in range(ROUNDS + 1):
        began_s = time.monotonic()
        act()
        if device == Device.CUDA:
            torch.cuda.synchronize()
        taken.append(time.monotonic() - began_s)
    return statistics.median(taken[1:])


def measure_checkpoint(device: Device, *, million_parameters: int = 190, rounds: int = ROUNDS) -> Measured:
    """Of 1.5 GB: the time that a checkpoint adds to the steps of two workers."""
    return asyncio.run(measure_stalls(million_parameters, rounds=rounds, device=device))


def measure_memory(device: Device, *, million_parameters: int = 25) -> Measured:
    """Bytes that all workers use on the first GPU: of one, of four, and of the one that is left of them."""
    return asyncio.run(_memory(device, million_parameters))


async def _memory(device: Device, million_parameters: int) -> Measured:
    before = _used_bytes(device)
    async with stage(device) as there:
        crew = there.crew("memory", _perceptron(million_parameters), checkpoint_every_s=_NEVER)
        used: Measured = {}
        for name, size in (("one", 1), ("four", 4), ("one_of_four", 1)):
            reached = _iteration(crew)
            if crew.members:
                await crew.switch([*crew.holders[:size], *[None] * (size - len(crew.holders))])
            else:
                await crew.start(size)
            await crew.until(
                lambda least=reached: len(crew.holders) == len(crew.members) and _iteration(crew) > least, "it trains"
            )
            used[name] = _used_bytes(device) - before
        await crew.suspend()
    return {"million_parameters": million_parameters, **used}


def _iteration(crew: Crew) -> int:
    """That all training workers have reported."""
    return min((worker.iteration for worker in crew.holders), default=0)


def _used_bytes(device: Device) -> int:
    if device == Device.CPU:
        return 0
    free, total = torch.cuda.mem_get_info(0)
    return total - free


def measure_warm_start(device: Device, *, rounds: int = ROUNDS) -> Measured:
    """Seconds from the order to the first step, of a new process and of a warm one."""
    return asyncio.run(_warm_start(device, rounds))


async def _warm_start(device: Device, rounds: int) -> Measured:
    started = asyncio.Queue[WorkerHandle]()

    def note(worker: WorkerHandle, event: WorkerEvent) -> None:
        if isinstance(event, Started):
            started.put_nowait(worker)

    taken: dict[str, list[float]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        for kind, warm_workers in (("cold", 0), ("warm", 1)):
            launcher = Launcher(
                data_dir=Path(folder), node_id=kind, on_event=note, device=device.value, warm_workers=warm_workers
            )
            await launcher.start()
            try:
                for number in range(rounds):
                    if warm_workers:
                        await asyncio.sleep(_WARM_UP_S if device == Device.CUDA else 1.0)
                    taken[kind].append(await _start_s(launcher, f"{kind}-{number}", Path(folder), device, started))
            finally:
                await launcher.close()
    return {f"{kind}_s": statistics.median(times) for kind, times in taken.items()}


async def _start_s(
    launcher: Launcher, job_id: str, folder: Path, device: Device, started: "asyncio.Queue[WorkerHandle]"
) -> float:
    assignment = Assignment(
        job_id=job_id,
        generation=1,
        rank=0,
        world_size=1,
        spec=_perceptron(1),
        checkpoint_dir=str(folder / job_id),
        device=device.value,
    )
    began_s = time.monotonic()
    worker = await launcher.launch(assignment)
    async with asyncio.timeout(_TIMEOUT_S):
        await started.get()
    took_s = time.monotonic() - began_s
    worker.kill()
    return took_s


def _perceptron(million_parameters: int) -> JobSpec:
    job = PerceptronOfEight().set_hyperparameter(
        global_batch_size=PerceptronOfEight.BATCH_SIZE, million_parameters=million_parameters
    )
    return job.term_condition(max_iterations=10**9).set_job_class("best_effort").spec()


def bandwidth_rows(measured: Measured) -> Iterable[Row]:
    for direction in ("to_host", "to_device"):
        pinned, pageable = (f"{measured[f'{kind}_{direction}'] / 1e9:.1f} GB/s" for kind in ("pinned", "pageable"))
        yield Row(f"copy {direction.replace('_', ' ')}, pinned memory", pinned, beside=f"pageable {pageable}")


def checkpoint_rows(measured: Measured) -> Iterable[Row]:
    yield Row(
        f"stall of a checkpoint of {8 * measured['million_parameters']} MB",
        f"{measured['stall_s'] * 1e3:.0f} ms",
        beside=f"step {measured['step_s'] * 1e3:.0f} ms",
    )


def memory_rows(measured: Measured) -> Iterable[Row]:
    one, four, left = (f"{measured[name] / _MIB:.0f} MiB" for name in ("one", "four", "one_of_four"))
    yield Row("GPU memory after 4 -> 1 workers", left, goal=one, beside=f"four workers {four}")


def warm_start_rows(measured: dict[str, Any]) -> Iterable[Row]:
    yield Row("start of a warm worker", f"{measured['warm_s']:.2f} s", beside=f"cold {measured['cold_s']:.2f} s")
