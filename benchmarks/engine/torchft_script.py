"""A training script as torchft's README advises: its manager, DDP and optimizer around the same training function.

python -m benchmarks.engine.torchft_script FOLDER lighthouse
python -m benchmarks.engine.torchft_script FOLDER replica NUMBER MILLION_PARAMETERS
"""

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # pyright: ignore
from torchft.coordination import LighthouseServer  # pyright: ignore

from benchmarks.engine.models import Perceptron
from benchmarks.engine.step_log import StepLog

TIMEOUT = timedelta(seconds=10)
LIGHTHOUSE = {"min_replicas": 1, "quorum_tick_ms": 100, "join_timeout_ms": 1000, "heartbeat_timeout_ms": 1000}


def serve(folder: Path) -> None:
    lighthouse = LighthouseServer(bind="[::]:0", **LIGHTHOUSE)
    (folder / "lighthouse.new").write_text(lighthouse.address())
    (folder / "lighthouse.new").rename(folder / "lighthouse")
    threading.Event().wait()


def train(folder: Path, number: int, million_parameters: int) -> None:
    torch.set_num_threads(1)
    job = Perceptron().set_hyperparameter(million_parameters=million_parameters)
    model, data = job.init_model(), job.init_dataset()
    bare = job.init_optimizer(model)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": bare.state_dict()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        bare.load_state_dict(state["optimizer"])

    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        "localhost", 0, is_master=True, wait_for_workers=False
    )
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=(folder / "lighthouse").read_text(),
        replica_id=f"replica_{number}",
    )
    parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, bare)
    log = StepLog(folder / f"steps-{number}")
    while True:
        before = manager.current_step()
        num_replicas = max(manager.num_participants(), 1)  # of the last step: those of the next one follow later
        batch = job.batch_of(data, iteration=before, rank=number, num_workers=num_replicas)
        job.train(batch, parallel, optimizer).item()
        if manager.current_step() > before:  # committed
            log.note(manager.num_participants(), os.getpid())


if __name__ == "__main__":
    if sys.argv[2] == "lighthouse":
        serve(Path(sys.argv[1]))
    else:
        while not (Path(sys.argv[1]) / "lighthouse").exists():
            time.sleep(0.01)
        train(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))
