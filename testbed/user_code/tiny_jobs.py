"""A training job that costs almost nothing and logs each of its steps. Imported by workers only.

Its worker's log file (logs/<job_id>/g<generation>-r<rank>.log) identifies the worker; all processes of the machine
share the clock.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elasticflow import ElasticJob, Scalar

SLOW_DOWN_S = 0.2  # of each step


class Steps(ElasticJob):
    """hyperparameters: step_s: minimum duration of a step. Optional: sample_s: of each sample, besides; slow_down: a
    file; while it exists, steps are so slow that the job does not end before the test's events, on any machine."""

    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 8, "step_s": 0.02}
    max_iterations = 100
    reproducible = "fast"  # one call of train is one step of a worker

    def init_model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def init_dataset(self):
        points = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sum(1, keepdim=True))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, batch, model, optimizer):
        points, targets = batch
        print(f"step {self.iteration} of process {os.getpid()} begins at {time.monotonic():.6f}")
        time.sleep(self.hyperparameters["step_s"] + len(points) * self.hyperparameters.get("sample_s", 0.0))
        if (file := self.hyperparameters.get("slow_down")) and Path(file).exists():
            time.sleep(SLOW_DOWN_S)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        optimizer.step()
        print(f"step {self.iteration} of process {os.getpid()} ends at {time.monotonic():.6f}")
        return loss


class Heavy(Steps):
    """hyperparameters: fits: the most samples that its memory holds at once."""

    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 8, "step_s": 0.005, "fits": 3}

    def train(self, batch, model, optimizer):
        if len(batch[0]) > self.hyperparameters["fits"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().train(batch, model, optimizer)
