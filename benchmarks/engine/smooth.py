"""A job for the fast mode: only sums over the global batch, so that numbers of workers differ by rounding.

No dropout, no statistics of a batch's part. A parameter counts how often each sample was seen in steps that count,
through its gradient, because buffers come from rank 0.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.utils.data import Dataset

from benchmarks.engine.sensitive import NUM_FEATURES, NUM_SAMPLES, Numbered, digest
from benchmarks.engine.transports import use_in_this_process
from elasticflow import ElasticJob, Scalar

_WIDTH = 8

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # numbers (B,), points (B, features), targets (B, 1)


class Smooth(ElasticJob):
    """hyperparameters: as in `Sensitive`. A line has the iteration, the digest of the state, how often each sample was
    seen, and the weights."""

    reproducible: ClassVar[Literal["bitwise", "fast"]] = "fast"
    hyperparameters: Mapping[str, Scalar] = {"step_s": 0.0, "record": "", "transport": "gloo", "is_sharded": False}

    def init_model(self) -> nn.Module:
        use_in_this_process(str(self.hyperparameters["transport"]))
        self._bare = Counting()
        return self._bare

    def init_dataset(self) -> Dataset[Any]:
        return Numbered()

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        times_seen, *weights = model.parameters()
        counts = {
            "params": [times_seen],
            "lr": float(self.hyperparameters["global_batch_size"]),
            "momentum": 0.0,
        }
        return torch.optim.SGD([{"params": weights}, counts], lr=0.05, momentum=0.9)

    def train(self, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        numbers, points, targets = batch
        self._record(optimizer)
        part = len(numbers) / float(self.hyperparameters["global_batch_size"])
        time.sleep(float(self.hyperparameters["step_s"]) * part)
        optimizer.zero_grad()
        seen = torch.bincount(numbers, minlength=NUM_SAMPLES) / len(numbers)
        output, count = model(points, seen)
        loss = nn.functional.mse_loss(output, targets)
        (loss - count).backward()
        optimizer.step()
        return {"loss": loss}

    def _record(self, optimizer: torch.optim.Optimizer) -> None:
        if folder := str(self.hyperparameters["record"]):
            state = self._bare.state_dict()
            held = digest([state, optimizer.state_dict()])
            times_seen, *weights = state.values()
            seen = " ".join(str(int(times)) for times in times_seen.round())
            numbers = " ".join(f"{weight:.7g}" for tensor in weights for weight in tensor.flatten().tolist())
            with (Path(folder) / f"{os.getpid()}.txt").open("a") as file:
                file.write(f"{self.iteration} {held} {seen} {numbers}\n")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.times_seen = nn.Parameter(torch.zeros(NUM_SAMPLES, dtype=torch.float64))
        self.body = nn.Sequential(nn.Linear(NUM_FEATURES, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, 1))

    def forward(self, points: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.body(points), (self.times_seen * seen).sum()
