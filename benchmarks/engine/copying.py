"""The speed at which this machine moves bytes between processes, without this engine: the reference for state
transfers.

Two processes send to one each over gloo, concurrently, as two staying workers do to two joining ones.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

_NUM_PAIRS = 2
_ROUNDS = 5


def measure_copying(num_bytes: int) -> float:
    """Bytes per second into each of the two receivers."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_copy, (num_bytes, folder), nprocs=2 * _NUM_PAIRS)  # pyright: ignore[reportPrivateImportUsage]
        return num_bytes / float((Path(folder) / "seconds").read_text())


def _copy(rank: int, num_bytes: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2 * _NUM_PAIRS)
    content = torch.zeros(num_bytes, dtype=torch.uint8)
    times_s: list[float] = []
    for _ in range(_ROUNDS):
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
