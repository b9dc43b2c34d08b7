"""A training script as the documentation of torchrun advises: DDP, and a snapshot from which each restart continues."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.engine.models import Perceptron
from benchmarks.engine.step_log import StepLog

_SNAPSHOT_EVERY = 10  # steps


def main(folder: Path, million_parameters: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    job = Perceptron().set_hyperparameter(million_parameters=million_parameters)
    model, data, iteration = job.init_model(), job.init_dataset(), 0
    optimizer = job.init_optimizer(model)
    snapshot = folder / "snapshot.pt"
    if snapshot.exists():
        state = torch.load(snapshot)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        iteration = state["iteration"]
    parallel = DistributedDataParallel(model)
    log = StepLog(folder / "steps")
    (folder / f"rank-{rank}").write_text(str(os.getpid()))
    while True:
        batch = job.batch_of(data, iteration=iteration, rank=rank, num_workers=num_workers)
        job.train(batch, parallel, optimizer).item()
        iteration += 1
        if rank == 0:
            log.note(num_workers, os.getpid())
            if iteration % _SNAPSHOT_EVERY == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iteration": iteration,
                }
                torch.save(state, folder / "snapshot.new")
                (folder / "snapshot.new").rename(snapshot)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
