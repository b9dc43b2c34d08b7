"""What the tests train: tiny, and each with one thing to watch. Imported by workers only."""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from elasticflow import ElasticJob, Scalar

NUM_SAMPLES = 50


class Numbered(Dataset):
    """Points, each with its number."""

    def __init__(self) -> None:
        self.points = torch.randn(NUM_SAMPLES, 4, generator=torch.Generator().manual_seed(1))
        self.targets = self.points.prod(1, keepdim=True)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int):
        return index, self.points[index], self.targets[index]


class Points(ElasticJob):
    """hyperparameters: step_s: least time of a step; record: folder for the numbers of samples seen."""

    hyperparameters: Mapping[str, Scalar] = {"learning_rate": 0.1, "step_s": 0.0, "record": ""}

    def init_model(self):
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def init_dataset(self):
        return Numbered()

    def init_optimizer(self, model):
        rate = self.hyperparameters["learning_rate"]
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def train(self, batch, model, optimizer):
        numbers, points, targets = batch
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        optimizer.step()
        if record := self.hyperparameters["record"]:
            with (Path(record) / str(os.getpid())).open("a") as file:
                file.write(f"{self.iteration} {' '.join(str(n) for n in numbers.tolist())}\n")
        time.sleep(self.hyperparameters["step_s"])
        return loss


class DiskFull(Points):
    """hyperparameters: failures: how many checkpoints the disk does not take."""

    def init_model(self):
        fsync, failures = os.fsync, [None] * self.hyperparameters["failures"]

        def failing_fsync(fd):
            if failures:
                failures.pop()
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(fd)

        os.fsync = failing_fsync
        return super().init_model()


class CountsDown(Points):
    """Its metric falls by one with each iteration; rank 0 alone evaluates."""

    evaluate_every = 2

    def train(self, batch, model, optimizer):
        return {"loss": super().train(batch, model, optimizer), "remaining": 100.0 - self.iteration}

    def evaluate(self, model):
        return {"evaluated_at": float(self.iteration)}


class KillsItself(Points):
    def train(self, batch, model, optimizer):
        if self.iteration == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(batch, model, optimizer)


class StartsProcesses(Points):
    """Leaves a process of its own behind, and says which."""

    def init_model(self):
        child = subprocess.Popen(["sleep", "600"])
        print(f"child={child.pid}")
        return super().init_model()


class NumpyInOptimizer(Points):
    """As a learning-rate schedule computed with numpy leaves it."""

    def train(self, batch, model, optimizer):
        optimizer.param_groups[0]["lr"] = np.float64(0.1) / (1 + self.iteration)
        return super().train(batch, model, optimizer)


class ReturnsText(Points):
    def train(self, batch, model, optimizer):
        return "all went well"


class Endless(Points):
    def init_dataset(self):
        return iter(range(10))


class HoldsMemory(Points):
    """hyperparameters: held_mib: of its device's memory. Data loader processes inherit what they can of it."""

    data_workers = 2

    def init_model(self):
        model = super().init_model()
        held = torch.zeros(self.hyperparameters["held_mib"], 1024, 1024, dtype=torch.uint8)
        model.register_buffer("held", held, persistent=False)
        return model
