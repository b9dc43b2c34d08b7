"""Three models with 16 virtual nodes: enough for splits over several GPU types."""

from typing import ClassVar

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.engine.models import Gpt, Perceptron, Trained

NUM_VIRTUAL_NODES = 16
_NUM_IMAGES, _PIXELS, _CLASSES = 256, 32, 10


class MixedGpt(Gpt):
    virtual_nodes: ClassVar[int] = NUM_VIRTUAL_NODES


class MixedPerceptron(Perceptron):
    BATCH_SIZE = 1024
    virtual_nodes: ClassVar[int] = NUM_VIRTUAL_NODES


class MixedConvolutions(Trained):
    """Three convolutions and a linear layer, on images of 32 x 32 pixels."""

    BATCH_SIZE = 64
    virtual_nodes: ClassVar[int] = NUM_VIRTUAL_NODES

    def init_model(self) -> nn.Module:
        layers = [
            layer
            for before, after in ((3, 32), (32, 64), (64, 64))
            for layer in (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
        ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * (_PIXELS // 8) ** 2, _CLASSES))

    def init_dataset(self) -> TensorDataset:
        chance = torch.Generator().manual_seed(0)
        images = torch.randn(_NUM_IMAGES, 3, _PIXELS, _PIXELS, generator=chance)
        return TensorDataset(images, torch.randint(_CLASSES, (_NUM_IMAGES,), generator=chance))


class LargeBatchGpt(MixedGpt):
    BATCH_SIZE = 64


class LargestBatchGpt(MixedGpt):
    BATCH_SIZE = 256


class LargeBatchConvolutions(MixedConvolutions):
    BATCH_SIZE = 256


MODELS: dict[str, type[Trained]] = {
    "convolutions": MixedConvolutions,
    "perceptron": MixedPerceptron,
    "gpt": MixedGpt,
}
