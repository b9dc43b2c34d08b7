"""Jobs that fail, each in its own way, to show the error reports."""

import math
import time
from collections.abc import Mapping

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elasticflow import ElasticJob, Scalar


class _Line(ElasticJob):
    """Fits a line through noise; each iteration takes a few milliseconds."""

    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 16, "learning_rate": 0.01}
    max_iterations = 100

    def init_model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def init_dataset(self) -> TensorDataset:
        numbers = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
        return TensorDataset(numbers, numbers.sum(1, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=float(self.hyperparameters["learning_rate"]))

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        numbers, sums = batch
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(numbers), sums)
        loss.backward()
        optimizer.step()
        return loss


class RaisesInIteration10(_Line):
    description = "raises in its 10th iteration"

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        if self.iteration == 9:
            raise RuntimeError("this is the 10th iteration")
        return super().train(batch, model, optimizer)


class Diverges(_Line):
    description = "its loss becomes NaN"

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        loss = super().train(batch, model, optimizer)
        return loss if self.iteration < 10 else loss * math.nan


class NeverReturns(_Line):
    description = "its 10th iteration never ends"

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        while self.iteration == 9:
            time.sleep(0.1)
        return super().train(batch, model, optimizer)


class BatchTooLarge(_Line):
    description = "its global batch is larger than its data set"
    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 512, "learning_rate": 0.01}
