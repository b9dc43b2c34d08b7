"""The cost of restoring a checkpoint from the system's page cache, as for a job that was stopped here a while ago.

Disks add their own time. read_s: to find the newest checkpoint, check its SHA-256 and read its tensors. load_s: to copy
these into the model and the optimizer. bytes_per_s: of both. copied_bytes_per_s: by a plain copy between processes, in
the same run. The copy is without this engine: two processes send to one each over gloo, concurrently, as two staying
workers do to two joining ones.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from rich.table import Table
from torch import nn

from benchmarks.engine.models import Perceptron
from benchmarks.engine.parts import Options, Row, in_ms, table_of
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore

# --- a plain copy between processes: the reference for state transfers ---------------------------------


_NUM_PAIRS = 2
_COPIES = 5


def measure_copying(num_bytes: int) -> float:
    """Bytes per second into each of the two receivers."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_copy, (num_bytes, folder), nprocs=2 * _NUM_PAIRS)  # pyright: ignore[reportPrivateImportUsage]
        return num_bytes / float((Path(folder) / "seconds").read_text())


def _copy(rank: int, num_bytes: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2 * _NUM_PAIRS)
    content = torch.zeros(num_bytes, dtype=torch.uint8)
    times_s: list[float] = []
    for _ in range(_COPIES):
        dist.barrier()
        began_s = time.monotonic()
        if rank < _NUM_PAIRS:
            dist.send(content, rank + _NUM_PAIRS)
        else:
            dist.recv(content, rank - _NUM_PAIRS)
        dist.barrier()
        times_s.append(time.monotonic() - began_s)
    if rank == 0:
        (Path(folder) / "seconds").write_text(str(statistics.median(times_s)))
    dist.destroy_process_group()


# --- restores ------------------------------------------------------------------------------------------


_ROUNDS = 5


def measure(options: Options) -> list[Row]:
    rows = [measure_restores(size, rounds=min(options.rounds, _ROUNDS)) for size in options.million_parameters]
    return [row | {"copied_bytes_per_s": measure_copying(row["num_bytes"])} for row in rows]


def measure_restores(million_parameters: int, *, rounds: int) -> Row:
    """Medians, on one thread, as workers have."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = CheckpointStore(Path(folder), generation=1)
            num_bytes = checkpoints.save(1, _state(*_trained(million_parameters))).num_bytes
            taken_s = [_restored(checkpoints, *_trained(million_parameters)) for _ in range(rounds)]
    finally:
        torch.set_num_threads(num_threads)
    read_s, load_s = (statistics.median(times_s) for times_s in zip(*taken_s, strict=True))
    return {
        "million_parameters": million_parameters,
        "num_bytes": num_bytes,
        "read_s": read_s,
        "load_s": load_s,
        "bytes_per_s": num_bytes / (read_s + load_s),
        "rounds": rounds,
    }


def _trained(million_parameters: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Model and optimizer, trained by one step, so that the optimizer has its momentum."""
    job = Perceptron().set_hyperparameter(million_parameters=million_parameters)
    model = job.init_model()
    optimizer = job.init_optimizer(model)
    job.train(job.batch_of(job.init_dataset(), iteration=0, rank=0, num_workers=1), model, optimizer)
    return model, optimizer


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def _restored(checkpoints: CheckpointStore, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Seconds to read, and to load."""
    began_s = time.monotonic()
    state = checkpoints.newest()
    read_s = time.monotonic()
    assert state is not None
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return read_s - began_s, time.monotonic() - read_s


def table(rows: list[Row]) -> Table:
    drawn = table_of(
        "Back from a checkpoint in the page cache",
        "parameters",
        "MB",
        "read, ms",
        "take over, ms",
        "GB/s",
        "plain copy, GB/s",
    )
    for row in rows:
        drawn.add_row(
            f"{row['million_parameters']} M",
            f"{row['num_bytes'] / 1e6:.0f}",
            *in_ms(row, "read_s", "load_s"),
            *(f"{row[name] / 1e9:.2f}" for name in ("bytes_per_s", "copied_bytes_per_s")),
        )
    return drawn
