"""The cost of a training step: this engine in its modes beside plain PyTorch DDP.

On CPU slots each worker process holds a job of every mode and runs their steps alternately, so that other load affects
all of them, and all reuse freed memory alike. A mode's cost is the median, over the rounds, of its step divided by
plain DDP's step of the same round: once in wall time, once in CPU time, which other programs disturb less.

On a GPU each mode has a process of its own, one after another: a bitwise mode chooses deterministic kernels for all of
its process, also for a plain step.
"""
# pyright: reportPrivateImportUsage=false
# (torch documents its stores and its spawn, but does not export them by the letter)

import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engine.models import LARGE_MODES, LARGE_PLAIN, MODES, PLAIN, Trained
from benchmarks.engine.parts import Device, Options, Row, device_fields, in_ms, table_of
from elasticflow.services.executor.worker.loop.worker_setup import set_up, worker_engine
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.device import use_one_heap
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.shared.messages.worker_protocol.frames import FrameReader, encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import FromWorker, RendezvousListening
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan, JoinRendezvous

_WARM_UP_ROUNDS = {Device.CPU: 1, Device.CUDA: 3}  # a GPU's libraries and its allocator choose in the first steps
PLAIN_MODE = "plain"
_ALL_MODES = ("fast", "bitwise_4", "bitwise_8")
# (model, million parameters, workers): rounds for each requested one, and modes; memory is for three models of 100 M
_CASES: Mapping[tuple[str, int, int], tuple[float, tuple[str, ...]]] = {
    ("gpt", 1, 2): (2.0, _ALL_MODES),
    ("gpt", 25, 1): (0.3, ("fast", "bitwise_8")),
    ("gpt", 25, 2): (0.5, _ALL_MODES),
    ("gpt", 100, 2): (0.2, ("fast", "bitwise_8")),
    ("perceptron", 1, 1): (3.0, _ALL_MODES),
    ("perceptron", 1, 2): (3.0, _ALL_MODES),
    ("perceptron", 1, 4): (3.0, _ALL_MODES),
    ("perceptron", 25, 1): (1.0, _ALL_MODES),
    ("perceptron", 25, 2): (1.0, _ALL_MODES),
    ("perceptron", 25, 4): (1.0, _ALL_MODES),
    ("perceptron", 100, 2): (0.3, ("fast", "bitwise_8")),
}
# of one worker, because NCCL accepts no second one on a GPU
_CUDA_CASES: Mapping[tuple[str, int, int], tuple[float, tuple[str, ...]]] = {
    ("resnet50", 25, 1): (3.0, ("fast", "bitwise_8")),
    ("gpt2", 124, 1): (3.0, ("fast", "bitwise_8")),
}
_ALL_MODELS = {**MODES, **LARGE_MODES}
_ALL_PLAIN = {**PLAIN, **LARGE_PLAIN}
_GENERATION = 1
Step = Callable[[], object]


def measure(options: Options) -> list[Row]:
    return [
        measure_steady(
            model,
            million_parameters=size,
            num_workers=num_workers,
            rounds=max(round(options.rounds * rounds), 3),
            modes=modes,
            device=options.device,
        )
        for (model, size, num_workers), (rounds, modes) in _cases(options.device).items()
        if size in options.million_parameters
    ]


def _cases(device: Device) -> Mapping[tuple[str, int, int], tuple[float, tuple[str, ...]]]:
    return _CUDA_CASES if device == Device.CUDA else _CASES


def table(rows: list[Row]) -> Table:
    drawn = table_of(
        "One step: milliseconds of plain DDP, and the modes as multiples of it (of CPU time)",
        *("model", "parameters", "workers", "plain DDP", *_ALL_MODES),
    )
    for row in rows:
        ratios = (
            f"{row[f'{mode}_ratio']:.3f} ({row[f'{mode}_cpu_ratio']:.3f})" if f"{mode}_ratio" in row else ""
            for mode in _ALL_MODES
        )
        drawn.add_row(
            row["model"],
            f"{row['million_parameters']} M",
            str(row["num_workers"]),
            *in_ms(row, "plain_step_s"),
            *ratios,
        )
    return drawn


def measure_steady(
    model: str,
    *,
    million_parameters: int,
    num_workers: int,
    rounds: int,
    modes: tuple[str, ...],
    device: Device = Device.CPU,
) -> Row:
    """A row: seconds and ratios of each mode."""
    case = SteadyCase(model, million_parameters, num_workers, rounds, (*modes, PLAIN_MODE), device)
    together = [case] if device == Device.CPU else [case._replace(modes=(mode,)) for mode in case.modes]
    of_ranks: list[dict[str, Any]] = [{} for _ in range(num_workers)]
    for present in together:
        taken = steps_of_ranks(present)
        for all_modes, these in zip(of_ranks, taken, strict=True):
            all_modes |= these
    row: Row = {
        "model": model,
        "million_parameters": million_parameters,
        "num_workers": num_workers,
    }
    for mode in (PLAIN_MODE, *modes):
        wall_s, cpu_s = of_ranks[0][mode]["wall_s"], [_sum_of_ranks(of_ranks, mode)[i] for i in range(rounds)]
        row[f"{mode}_step_s"] = statistics.median(wall_s)
        row[f"{mode}_cpu_s"] = statistics.median(cpu_s)
        if mode != PLAIN_MODE:
            row[f"{mode}_ratio"] = _median_ratio(wall_s, of_ranks[0][PLAIN_MODE]["wall_s"])
            row[f"{mode}_cpu_ratio"] = _median_ratio(cpu_s, _sum_of_ranks(of_ranks, PLAIN_MODE))
    return row


class SteadyCase(NamedTuple):
    """modes: those that share the workers' processes, also "plain"."""

    model: str
    million_parameters: int
    num_workers: int
    rounds: int
    modes: tuple[str, ...]
    device: Device


def steps_of_ranks(case: SteadyCase) -> list[dict[str, Any]]:
    """The wall_s and cpu_s of each round, by rank and mode.

    Plain DDP also has flops: floating-point operations of a step's matrix products and convolutions.
    """
    multiprocessing.set_forkserver_preload([__name__])  # torch is loaded once for all processes
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(_work, (case, folder), nprocs=case.num_workers, start_method="forkserver")
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(case.num_workers)]


def _sum_of_ranks(of_ranks: list[Any], mode: str) -> list[float]:
    return [sum(each) for each in zip(*(rank[mode]["cpu_s"] for rank in of_ranks), strict=True)]


def _median_ratio(these: list[float], those: list[float]) -> float:
    return statistics.median(this / that for this, that in zip(these, those, strict=True))


def _work(rank: int, case: SteadyCase, folder: str) -> None:
    num_workers, modes, device = case.num_workers, case.modes, case.device
    use_one_heap()  # as a worker does
    os.setpgid(0, 0)  # a worker whose executor is gone kills its process group
    torch.set_num_threads(1)
    backend = "cpu:gloo,cuda:nccl" if device == Device.CUDA else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=num_workers)
    store = dist.FileStore(f"{folder}/addresses", num_workers)
    steps: dict[str, Step] = {
        mode: _engine_step(_ALL_MODELS[case.model][mode], case, rank, store, folder)
        for mode in modes
        if mode != PLAIN_MODE
    }
    if PLAIN_MODE in modes:
        steps[PLAIN_MODE] = _plain_step(_ALL_PLAIN[case.model], case, rank)
    together = torch.zeros(1)
    taken: dict[str, dict[str, Any]] = {mode: {"wall_s": [], "cpu_s": []} for mode in steps}
    for round_ in range(_WARM_UP_ROUNDS[device] + case.rounds):
        for mode, step in steps.items():
            dist.all_reduce(together)  # on the host, as a barrier
            wall_s, cpu_s = time.monotonic(), time.process_time()
            step()
            if device == Device.CUDA:
                torch.cuda.synchronize()
            if round_ >= _WARM_UP_ROUNDS[device]:
                taken[mode]["wall_s"].append(time.monotonic() - wall_s)
                taken[mode]["cpu_s"].append(time.process_time() - cpu_s)
    if PLAIN_MODE in modes:
        with FlopCounterMode(display=False) as counter:
            steps[PLAIN_MODE]()
        taken[PLAIN_MODE]["flops"] = counter.get_total_flops()
    (Path(folder) / str(rank)).write_text(json.dumps(taken))
    dist.all_reduce(together)
    os._exit(0)  # with all groups and threads of all modes, at once


def _plain_step(job_class: type[Trained], case: SteadyCase, rank: int) -> Step:
    """The same training function in a plain loop. On a GPU, DDP wraps also a single worker's model, and an epoch's
    batches are ready in pinned memory."""
    num_workers, device = case.num_workers, case.device
    job = job_class().set_hyperparameter(million_parameters=case.million_parameters)
    model, data = job.init_model().to(device), job.init_dataset()
    optimizer = job.init_optimizer(model)
    parallel = DistributedDataParallel(model) if num_workers > 1 or device == Device.CUDA else model

    def batch_of(iteration: int) -> list[torch.Tensor]:
        return job.batch_of(data, iteration=iteration, rank=rank, num_workers=num_workers)

    if device == Device.CPU:
        batches = map(batch_of, count())
    else:
        epoch = [[part.pin_memory() for part in batch_of(i)] for i in range(len(data) // job.BATCH_SIZE)]
        batches = ([part.to(device, non_blocking=True) for part in batch] for batch in cycle(epoch))

    def step() -> float:
        return job.train(next(batches), parallel, optimizer).item()

    return step


def _engine_step(job_class: type[Trained], case: SteadyCase, rank: int, store: dist.Store, folder: str) -> Step:
    """A worker's trainer, as set up in a process of its own."""
    spec = (
        job_class()
        .set_hyperparameter(global_batch_size=job_class.BATCH_SIZE, million_parameters=case.million_parameters)
        .term_condition(max_iterations=1_000_000)
        .set_job_class("best_effort")
        .spec()
    )
    assignment = Assignment(
        job_id=job_class.__name__,
        plan=GenerationPlan(generation=_GENERATION, world_size=case.num_workers),
        rank=rank,
        spec=spec,
        checkpoint_dir=folder,
        **device_fields(case.device, rank),
    )
    ours, theirs = socket.socketpair()
    threading.Thread(target=_executor, args=(ours, store, job_class.__name__, rank), daemon=True).start()
    channel = Channel(theirs)
    trainer, *_ = set_up(assignment, channel, Telemetry(channel), worker_engine)
    return lambda: trainer.step(stop=False)


def _executor(sock: socket.socket, store: dist.Store, name: str, rank: int) -> None:
    """Forwards the address of rank 0."""
    if rank > 0:
        address = store.get(name).decode()
        sock.sendall(encode_frame(JoinRendezvous(generation=_GENERATION, address=address)))
    frames = FrameReader[FromWorker](*get_args(FromWorker))
    while data := sock.recv(65_536):
        for message in frames.feed(data):
            if isinstance(message, RendezvousListening):
                store.set(name, f"127.0.0.1:{message.port}")
