"""What the engine costs on a GPU: a step of each mode, checkpoints, memory, warm starts; copies are beside them.

Each mode of a step of GPT-2 and ResNet-50 has a process of its own, since a bitwise mode chooses deterministic kernels
for its whole process.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from benchmarks.engine.crew import Crew
from benchmarks.engine.models import PerceptronOfEight
from benchmarks.engine.parts import Device
from benchmarks.engine.stage import Stage, stage
from benchmarks.engine.stalls import measure_checkpoint_stall
from benchmarks.engine.steady import PLAIN_MODE, SteadyCase, steps_of_ranks
from benchmarks.report import Measured, Row
from elasticflow.services.executor.processes.launcher import Launcher, WorkerEvent, WorkerHandle
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.from_worker import Started
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan

# --- a step --------------------------------------------------------------------------------------------


_MODES = (PLAIN_MODE, "fast", "bitwise_1", "bitwise_2", "bitwise_4", "bitwise_8")
_QUICK_MODES = (PLAIN_MODE, "fast", "bitwise_2")
_SIZES = {"gpt2": 124, "resnet50": 25}  # millions of parameters
_STEP_ROUNDS, _QUICK_STEP_ROUNDS = 12, 2
# Floating-point operations per second in bfloat16 without sparsity, by part of a product's name.
_PEAK_FLOPS: Mapping[str, float] = {"H100": 989e12, "H200": 989e12, "A100": 312e12}


def measure_steps(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    """Notes by model and mode the median and the least seconds of a step, and the model's operations."""
    for model, size in ({"gpt2": 1} if quick else _SIZES).items():
        measured: Measured = {}
        for mode in _QUICK_MODES if quick else _MODES:
            case = SteadyCase(
                model=model,
                million_parameters=1 if quick else size,
                num_workers=1,
                rounds=_QUICK_STEP_ROUNDS if quick else _STEP_ROUNDS,
                modes=(mode,),
                device=device,
            )
            (taken,) = steps_of_ranks(case)
            wall_s = taken[mode]["wall_s"]
            measured[mode] = {"step_s": statistics.median(wall_s), "least_s": min(wall_s)}
            if mode == PLAIN_MODE:
                measured["flops"] = taken[mode]["flops"]
                measured["peak_flops"] = _peak_flops(device)
            note(**{model: measured})


def _peak_flops(device: Device) -> float | None:
    """The peak of the device; None if it is unknown."""
    if device == Device.CPU:
        return None
    name = torch.cuda.get_device_properties(0).name
    return next((peak for part, peak in _PEAK_FLOPS.items() if part in name), None)


def rows_of_steps(measured: Measured) -> Iterable[Row]:
    for model, found in measured.items():
        plain_s = found[PLAIN_MODE]["step_s"]
        for mode in (mode for mode in _MODES if mode in found):
            step_s = found[mode]["step_s"]
            ratio = "" if mode == PLAIN_MODE else f"{step_s / plain_s:.3f} times plain DDP"
            flops_per_s, peak = found["flops"] / step_s, found["peak_flops"]
            used = f"{flops_per_s / peak:.1%} of the peak" if peak else f"{flops_per_s / 1e12:.3f} TFLOP/s"
            beside = ", ".join(filter(None, (ratio, used)))
            yield Row(f"step of {model}, {mode}", f"{step_s * 1e3:.1f} ms", beside=beside)


# --- copies, and what the engine adds to them ----------------------------------------------------------


_ROUNDS = 5  # of copies
_STARTS = 2
_NUM_SLOTS = 4  # of the GPU
_MIB = 1 << 20
_WARM_UP_S = {Device.CUDA: 6.0, Device.CPU: 0.5}  # above what contexts and their libraries take
_TIMEOUT_S = 60.0
_NEVER_S = 1e6


def measure_copies(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    asyncio.run(_measure_workers(device, quick, note))
    note(warm=asyncio.run(_warm(device, 1 if quick else _STARTS)))
    note(bandwidth=_bandwidth(device, num_bytes=1 << (20 if quick else 30)))


async def _measure_workers(device: Device, quick: bool, note: Callable[..., None]) -> None:
    size = 1 if quick else 190  # millions of parameters, with 8 bytes of state each
    before = _used_bytes(device)
    async with stage(device) as there:
        stall = await measure_checkpoint_stall(there, size, rounds=1 if quick else 2)
        note(checkpoint={"million_parameters": size, **stall})
        note(workers=await _workers(there, device, before, 1 if quick else 25))


def _bandwidth(device: Device, *, num_bytes: int) -> Measured:
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
    for _ in range(_ROUNDS + 1):
        began_s = time.monotonic()
        act()
        if device == Device.CUDA:
            torch.cuda.synchronize()
        taken.append(time.monotonic() - began_s)
    return statistics.median(taken[1:])


async def _workers(there: Stage, device: Device, before: int, million_parameters: int) -> Measured:
    """Bytes that all workers use on the first GPU: of one, of four, and of the one that is left of them."""
    crew = there.crew("memory", _perceptron(million_parameters), checkpoint_every_s=_NEVER_S)
    used: Measured = {}
    for name, size in (("one", 1), ("four", 4), ("one_of_four", 1)):
        reached = _iteration(crew)
        await (crew.resize(size) if crew.members else crew.start(size))
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


async def _warm(device: Device, num_starts: int) -> Measured:
    """Seconds from the order to the first step, of a new process and of a warm one; bytes of idle warm workers.

    idle_bytes: of the GPU that they use before a job starts. beside_bytes: that all use once it trains.
    """
    started = asyncio.Queue[WorkerHandle]()

    def note(worker: WorkerHandle, event: WorkerEvent) -> None:
        if isinstance(event, Started):
            started.put_nowait(worker)

    name = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    before = _used_bytes(device)
    taken: dict[str, list[float]] = {"cold": [], "warm": []}
    used: Measured = {}
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(
            data_dir=Path(folder),
            node_id="copies",
            on_event=note,
            device=device.value,
            gpu_names=(name,) * (_NUM_SLOTS + 1) if device == Device.CUDA else (),
            warm_workers=_NUM_SLOTS,
        )
        await launcher.start()
        try:
            await asyncio.sleep(_WARM_UP_S[device])
            used["idle_bytes"] = _used_bytes(device) - before
            for number in range(num_starts):
                for kind, slot in (("warm", number), ("cold", _NUM_SLOTS)):  # the last slot has no warm worker
                    assignment = _assignment(f"{kind}-{number}", Path(folder), device, slot)
                    began_s = time.monotonic()
                    worker = await launcher.launch(assignment)
                    async with asyncio.timeout(_TIMEOUT_S):
                        await started.get()
                    taken[kind].append(time.monotonic() - began_s)
                    if "beside_bytes" not in used:
                        await asyncio.sleep(_WARM_UP_S[device])
                        used["beside_bytes"] = _used_bytes(device) - before
                    worker.kill()
        finally:
            await launcher.close()
    seconds = {f"{kind}_s": statistics.median(times) for kind, times in taken.items()}
    return {**seconds, **used, "num_slots": _NUM_SLOTS}


def _assignment(job_id: str, folder: Path, device: Device, slot: int) -> Assignment:
    return Assignment(
        job_id=job_id,
        plan=GenerationPlan(generation=1, world_size=1),
        rank=0,
        spec=_perceptron(1),
        checkpoint_dir=str(folder / job_id),
        device=device.value,
        gpu_index=slot,
    )


def _perceptron(million_parameters: int) -> JobSpec:
    job = PerceptronOfEight().set_hyperparameter(
        global_batch_size=PerceptronOfEight.BATCH_SIZE, million_parameters=million_parameters
    )
    return job.term_condition(max_iterations=10**9).set_job_class("best_effort").spec()


def rows_of_copies(measured: Measured) -> Iterable[Row]:
    if checkpoint := measured.get("checkpoint"):
        yield Row(
            f"stall of a checkpoint of {8 * checkpoint['million_parameters']} MB",
            f"{checkpoint['stall_s'] * 1e3:.0f} ms",
            beside=f"step {checkpoint['step_s'] * 1e3:.0f} ms",
        )
    if warm := measured.get("warm"):
        yield Row("start of a warm worker", f"{warm['warm_s']:.2f} s", beside=f"cold {warm['cold_s']:.2f} s")
        one = f"{warm['idle_bytes'] / warm['num_slots'] / _MIB:.0f} MiB"
        beside = f"while one of {warm['num_slots']} slots trains, all {warm['beside_bytes'] / _MIB:.0f} MiB"
        yield Row("GPU memory of an idle warm worker", one, beside=beside)
    bandwidth: Measured = measured.get("bandwidth", {})
    for direction in ("to_host", "to_device") if bandwidth else ():
        pinned, pageable = (f"{bandwidth[f'{kind}_{direction}'] / 1e9:.1f} GB/s" for kind in ("pinned", "pageable"))
        yield Row(f"copy {direction.replace('_', ' ')}, pinned memory", pinned, beside=f"pageable {pageable}")
    if workers := measured.get("workers"):
        one, four, left = (f"{workers[name] / _MIB:.0f} MiB" for name in ("one", "four", "one_of_four"))
        yield Row("GPU memory after 4 -> 1 workers", left, one, f"four workers {four}")
