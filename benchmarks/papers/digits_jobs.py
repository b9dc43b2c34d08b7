"""A perceptron on handwritten digits with wrong labels, with virtual nodes and without."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elasticflow import Scalar
from examples.digits import Digits

NUM_VIRTUAL_NODES = 32
_WIDTH, _CLASSES = 64, 10


class NoisyDigits(Digits):
    """hyperparameters: wrong_labels: part of the training labels that are drawn at random."""

    virtual_nodes: ClassVar[int] = NUM_VIRTUAL_NODES
    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 1024, "learning_rate": 0.1, "wrong_labels": 0.4}

    def init_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _CLASSES))

    def init_dataset(self) -> TensorDataset:
        images, labels = super().init_dataset().tensors
        chance = torch.Generator().manual_seed(0)
        is_wrong = torch.rand(len(labels), generator=chance) < float(self.hyperparameters["wrong_labels"])
        drawn = torch.randint(_CLASSES, labels.shape, generator=chance)
        return TensorDataset(images, torch.where(is_wrong, drawn, labels))


class NaiveDigits(NoisyDigits):
    """The same digits without virtual nodes, as plain data-parallel training."""

    virtual_nodes = 0
    reproducible: ClassVar[Literal["bitwise", "fast"]] = "fast"
