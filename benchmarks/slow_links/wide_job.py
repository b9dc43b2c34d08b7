"""A job whose compute is waiting and whose gradient is wide: a slow link takes as long for it as the compute."""

import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elasticflow import ElasticJob


class WideModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.wide = nn.Parameter(torch.zeros(1_000_000))  # 4 MB of gradient a step

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.line(points) + self.wide.sum()


class WideJob(ElasticJob):
    hyperparameters = {"global_batch_size": 8, "sample_s": 0.05}  # noqa: RUF012 - a declaration
    max_iterations = 150
    reproducible = "fast"

    def init_model(self) -> nn.Module:
        return WideModel()

    def init_dataset(self):
        points = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sum(1, keepdim=True))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1e-6)

    def train(self, batch, model, optimizer):
        points, targets = batch
        time.sleep(len(points) * float(self.hyperparameters["sample_s"]))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        optimizer.step()
        return loss
