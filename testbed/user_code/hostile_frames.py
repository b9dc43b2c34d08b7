"""A training job whose worker writes frames of its own on the channel to its executor. Imported by workers only.

Most frames can be read and say what is not so; some cannot be read, and the executor then kills the worker.
"""

import os
import socket
import stat
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import msgpack
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elasticflow import ElasticJob, Scalar

PART_UNREADABLE = 0.002  # of the frames; each costs the worker its life
# No iterations that no checkpoint holds: the next worker of the job would wait for one.
READABLE = (
    ("Progressed", {"iteration": 0, "iterations_per_s": 1e9, "metrics": {"loss": 1e308}}),
    ("Progressed", {"iteration": 0, "iterations_per_s": None, "metrics": {f"{n:032d}": -1e300 for n in range(60)}}),
    ("Alive", {"iteration": 0, "seconds_since_progress": 1e8}),
    ("Lagged", {"rank": 1023, "slowdown": 1e9}),
    ("Started", {"iteration": 0, "resize": None}),
    ("RendezvousListening", {"generation": 999, "port": 1}),
    ("CheckpointWritten", {"iteration": 0, "request": 77, "num_bytes": 2**40, "file": "../../../etc/passwd"}),
    ("CheckpointFailed", {"request": 77, "reason": "\x1b[2J" * 200}),
    ("Interrupted", {"iteration": 0, "micro_batch_size": 0}),
)
UNREADABLE = (
    b"\xff\xff\xff\xff",
    struct.pack(">I", 1) + b"\xc1",
    struct.pack(">I", 5) + b"\xdd\xff\xff\xff\xff",
    b"GET / HTTP/1.1\r\n\r\n",
)


def channel() -> socket.socket:
    """This worker's end: the only local stream socket of its process."""
    for entry in sorted(Path("/proc/self/fd").iterdir(), key=lambda entry: int(entry.name)):
        try:
            number = int(entry.name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=os.dup(number))
            if (found.family, found.type) == (socket.AF_UNIX, socket.SOCK_STREAM) and found.getpeername() is not None:
                return found
        except OSError:
            continue
    raise RuntimeError("this process has no local stream socket")


def frame(rng: np.random.Generator) -> bytes:
    if rng.random() < PART_UNREADABLE:
        return UNREADABLE[int(rng.integers(len(UNREADABLE)))]
    name, fields = READABLE[int(rng.integers(len(READABLE)))]
    body = msgpack.packb([name, fields])
    return struct.pack(">I", len(body)) + body


class Frames(ElasticJob):
    """hyperparameters: step_s: of a step; frames_per_step; seed. Its log tells the number of frames sent so far."""

    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 8, "step_s": 0.2, "frames_per_step": 18, "seed": 0}
    max_iterations = 1_000_000
    reproducible = "fast"

    def init_model(self) -> nn.Module:
        self.channel = channel()
        self.rng = np.random.default_rng((int(self.hyperparameters["seed"]), os.getpid()))
        self.num_sent = 0
        return nn.Linear(4, 1)

    def init_dataset(self):
        return TensorDataset(torch.ones(64, 4), torch.ones(64, 1))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, batch, model, optimizer):
        for _ in range(int(self.hyperparameters["frames_per_step"])):
            self.num_sent += 1
            print(f"frame {self.num_sent}", flush=True)
            self.channel.sendall(frame(self.rng))
        time.sleep(self.hyperparameters["step_s"])
        return nn.functional.mse_loss(model(batch[0]), batch[1])
