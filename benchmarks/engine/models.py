"""What is trained: a perceptron, which has the least arithmetic for each byte of gradient that workers exchange."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elasticflow import ElasticJob, Scalar

GLOBAL_BATCH_SIZE = 128  # samples
_FEATURES, _CLASSES = 256, 10
_NUM_SAMPLES = 1024
_WIDTH_OF = {1: 870, 25: 4870}  # by millions of parameters


class Perceptron(ElasticJob):
    """hyperparameters: million_parameters: 1 or 25."""

    hyperparameters: Mapping[str, Scalar] = {"million_parameters": 1}

    def init_model(self) -> nn.Module:
        width = _WIDTH_OF[int(self.hyperparameters["million_parameters"])]
        return nn.Sequential(
            nn.Linear(_FEATURES, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, _CLASSES),
        )

    def init_dataset(self) -> TensorDataset:
        chance = torch.Generator().manual_seed(0)
        features = torch.randn(_NUM_SAMPLES, _FEATURES, generator=chance)
        return TensorDataset(features, torch.randint(_CLASSES, (_NUM_SAMPLES,), generator=chance))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train(
        self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> torch.Tensor:
        features, classes = batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), classes)
        loss.backward()
        optimizer.step()
        return loss


class Fast(Perceptron):
    reproducible: ClassVar[Literal["bitwise", "fast"]] = "fast"


class Bitwise(Perceptron):
    """As by default: 8 virtual nodes."""


class BitwiseOfFour(Perceptron):
    virtual_nodes: ClassVar[int] = 4
