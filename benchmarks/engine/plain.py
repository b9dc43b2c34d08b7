"""Plain PyTorch: the same training function in a loop, on DistributedDataParallel, with nothing around it."""

import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from benchmarks.engine.models import GLOBAL_BATCH_SIZE, Perceptron

_WARM_UP_STEPS = 2


def measure_plain(*, million_parameters: int, num_workers: int, num_steps: int) -> float:
    """Seconds of a step, the median."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (num_workers, million_parameters, num_steps, folder)
        multiprocessing.spawn(_train, arguments, nprocs=num_workers)  # pyright: ignore[reportPrivateImportUsage]
        return float((Path(folder) / "median_s").read_text())


def _train(rank: int, num_workers: int, million_parameters: int, num_steps: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_workers)
    job = Perceptron().set_hyperparameter(million_parameters=million_parameters)
    model, data = job.init_model(), job.init_dataset()
    optimizer = job.init_optimizer(model)
    parallel = DistributedDataParallel(model) if num_workers > 1 else model
    local = GLOBAL_BATCH_SIZE // num_workers
    times_s: list[float] = []
    for step in range(_WARM_UP_STEPS + num_steps):
        began_s = time.monotonic()
        first = (step * GLOBAL_BATCH_SIZE + rank * local) % len(data)
        loss = job.train(default_collate([data[first + i] for i in range(local)]), parallel, optimizer)
        loss.item()
        times_s.append(time.monotonic() - began_s)
    if rank == 0:
        (Path(folder) / "median_s").write_text(str(statistics.median(times_s[_WARM_UP_STEPS:])))
    dist.destroy_process_group()
