"""The models of the GPU runs: ResNet-50 and GPT-2 with 124 million parameters, in bfloat16 as people train them.

With a million parameters each is a small one of the same kind, for runs without a GPU.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.engine.models import (
    BitwiseOfEight,
    BitwiseOfFour,
    BitwiseOfOne,
    BitwiseOfTwo,
    Decoder,
    Fast,
    Trained,
)
from elasticflow import Scalar

_NUM_SAMPLES = 256
_NUM_CLASSES = 1000
_WIDTH_AND_SIDE_OF = {1: (16, 32), 25: (64, 224)}  # of the first stage in channels, of an image in pixels; by millions
_BLOCKS = (3, 4, 6, 3)
_EXPANSION = 4
# depth, width, tokens of a sample and vocabulary, by millions of parameters
_GPT_OF = {1: (2, 128, 64, 2048), 124: (12, 768, 1024, 50_304)}


class _InBfloat16(Trained):
    """Computes in bfloat16 and keeps weights in float32."""

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
            return super().train(batch, model, optimizer)


class ResNet50(_InBfloat16):
    BATCH_SIZE = 128
    hyperparameters: Mapping[str, Scalar] = {"million_parameters": 25}

    def init_model(self) -> nn.Module:
        return residual_network(_WIDTH_AND_SIDE_OF[self.million_parameters][0])

    def init_dataset(self) -> TensorDataset:
        side = _WIDTH_AND_SIDE_OF[self.million_parameters][1]
        chance = torch.Generator().manual_seed(0)
        images = torch.randn(_NUM_SAMPLES, 3, side, side, generator=chance)
        return TensorDataset(images, torch.randint(_NUM_CLASSES, (_NUM_SAMPLES,), generator=chance))


class Gpt2(_InBfloat16):
    BATCH_SIZE = 8
    hyperparameters: Mapping[str, Scalar] = {"million_parameters": 124}

    def init_model(self) -> nn.Module:
        depth, width, tokens, vocabulary = _GPT_OF[self.million_parameters]
        model = Decoder(depth, width, vocabulary=vocabulary, num_tokens=tokens)
        model.head.weight = model.tokens.weight
        return model

    def init_dataset(self) -> TensorDataset:
        _, _, tokens, vocabulary = _GPT_OF[self.million_parameters]
        chance = torch.Generator().manual_seed(0)
        text = torch.randint(vocabulary, (_NUM_SAMPLES, tokens + 1), generator=chance)
        return TensorDataset(text[:, :-1], text[:, 1:])


class Bottleneck(nn.Module):
    """Three convolutions beside a direct path (He et al., 2015). stride: of the second, as in version 1.5."""

    def __init__(self, num_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        num_outputs = width * _EXPANSION
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(num_inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, num_outputs, 1, bias=False), nn.BatchNorm2d(num_outputs)),
        )
        self.direct: nn.Module = nn.Identity()
        if stride > 1 or num_inputs != num_outputs:
            self.direct = nn.Sequential(
                nn.Conv2d(num_inputs, num_outputs, 1, stride, bias=False), nn.BatchNorm2d(num_outputs)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolutions(images) + self.direct(images))


def residual_network(width: int) -> nn.Module:
    """ResNet-50 with so many channels in its first stage (64: 25.6 million parameters)."""
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    ]
    num_inputs = width
    for stage, num_blocks in enumerate(_BLOCKS):
        for block in range(num_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(num_inputs, width << stage, stride))
            num_inputs = (width << stage) * _EXPANSION
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_inputs, _NUM_CLASSES))


class FastResNet50(Fast, ResNet50): ...


class ResNet50OfOne(BitwiseOfOne, ResNet50): ...


class ResNet50OfTwo(BitwiseOfTwo, ResNet50): ...


class ResNet50OfFour(BitwiseOfFour, ResNet50): ...


class ResNet50OfEight(BitwiseOfEight, ResNet50): ...


class FastGpt2(Fast, Gpt2): ...


class Gpt2OfOne(BitwiseOfOne, Gpt2): ...


class Gpt2OfTwo(BitwiseOfTwo, Gpt2): ...


class Gpt2OfFour(BitwiseOfFour, Gpt2): ...


class Gpt2OfEight(BitwiseOfEight, Gpt2): ...


LARGE_MODES: Mapping[str, Mapping[str, type[Trained]]] = {
    "resnet50": {
        "fast": FastResNet50,
        "bitwise_1": ResNet50OfOne,
        "bitwise_2": ResNet50OfTwo,
        "bitwise_4": ResNet50OfFour,
        "bitwise_8": ResNet50OfEight,
    },
    "gpt2": {
        "fast": FastGpt2,
        "bitwise_1": Gpt2OfOne,
        "bitwise_2": Gpt2OfTwo,
        "bitwise_4": Gpt2OfFour,
        "bitwise_8": Gpt2OfEight,
    },
}
LARGE_PLAIN: Mapping[str, type[Trained]] = {"resnet50": ResNet50, "gpt2": Gpt2}
