"""The models that every mode trains, and those of the GPU runs.

A perceptron is the worst case: it computes least for each byte of weights and gradients. A small GPT computes like a
language model, on a batch small enough for two cores. The GPU runs train ResNet-50 and GPT-2 with 124 million
parameters, in bfloat16 as people train them. With a million parameters each is a small one of the same kind, for runs
without a GPU.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from elasticflow import ElasticJob, Scalar

MILLION_PARAMETERS = (1, 25, 100)
_NUM_SAMPLES = 1024
_FEATURES, _CLASSES = 256, 10
_WIDTH_OF = {1: 870, 25: 4870, 100: 9860, 190: 13650}  # by millions of parameters
_VOCABULARY, _TOKENS, _HEAD_WIDTH = 512, 128, 64
_DEPTH_AND_WIDTH_OF = {1: (5, 128), 25: (8, 512), 100: (8, 1024)}


class Trained(ElasticJob):
    """hyperparameters: million_parameters: 1, 25 or 100."""

    BATCH_SIZE: ClassVar[int]  # samples, of all workers together
    hyperparameters: Mapping[str, Scalar] = {"million_parameters": 1}

    @property
    def million_parameters(self) -> int:
        return int(self.hyperparameters["million_parameters"])

    def batch_of(self, data: TensorDataset, *, iteration: int, rank: int, num_workers: int) -> list[torch.Tensor]:
        """A worker's part of a global batch, as read without an engine."""
        local = self.BATCH_SIZE // num_workers
        first = iteration * self.BATCH_SIZE + rank * local
        return default_collate([data[(first + i) % len(data)] for i in range(local)])

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        inputs, classes = batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), classes.flatten())
        loss.backward()
        optimizer.step()
        return loss


class Perceptron(Trained):
    BATCH_SIZE = 128

    def init_model(self) -> nn.Module:
        width = _WIDTH_OF[self.million_parameters]
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


class Gpt(Trained):
    """Predicts the next of 128 tokens."""

    BATCH_SIZE = 16

    def init_model(self) -> nn.Module:
        return Decoder(*_DEPTH_AND_WIDTH_OF[self.million_parameters])

    def init_dataset(self) -> TensorDataset:
        chance = torch.Generator().manual_seed(0)
        text = torch.randint(_VOCABULARY, (_NUM_SAMPLES, _TOKENS + 1), generator=chance)
        return TensorDataset(text[:, :-1], text[:, 1:])


class Decoder(nn.Module):
    def __init__(self, depth: int, width: int, *, vocabulary: int = _VOCABULARY, num_tokens: int = _TOKENS) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(num_tokens, width))
        block = nn.TransformerEncoderLayer(
            width,
            width // _HEAD_WIDTH,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(num_tokens))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, shape (samples, tokens, vocabulary)."""
        hidden = self.tokens(text) + self.positions
        return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))


class Fast:
    reproducible: ClassVar[Literal["bitwise", "fast"]] = "fast"


class BitwiseOfOne:
    virtual_nodes: ClassVar[int] = 1


class BitwiseOfTwo:
    virtual_nodes: ClassVar[int] = 2


class BitwiseOfFour:
    virtual_nodes: ClassVar[int] = 4


class BitwiseOfEight:
    virtual_nodes: ClassVar[int] = 8


class BitwiseOfSixteen:
    virtual_nodes: ClassVar[int] = 16


class FastPerceptron(Fast, Perceptron): ...


class PerceptronOfFour(BitwiseOfFour, Perceptron): ...


class PerceptronOfEight(BitwiseOfEight, Perceptron): ...


class PerceptronOfSixteen(BitwiseOfSixteen, Perceptron): ...


class FastGpt(Fast, Gpt): ...


class GptOfFour(BitwiseOfFour, Gpt): ...


class GptOfEight(BitwiseOfEight, Gpt): ...


MODES: Mapping[str, Mapping[str, type[Trained]]] = {
    "perceptron": {
        "fast": FastPerceptron,
        "bitwise_4": PerceptronOfFour,
        "bitwise_8": PerceptronOfEight,
    },
    "gpt": {"fast": FastGpt, "bitwise_4": GptOfFour, "bitwise_8": GptOfEight},
}
PLAIN: Mapping[str, type[Trained]] = {"perceptron": Perceptron, "gpt": Gpt}


# --- models of the GPU runs ----------------------------------------------------------------------------


_NUM_LARGE_SAMPLES = 256
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
        images = torch.randn(_NUM_LARGE_SAMPLES, 3, side, side, generator=chance)
        return TensorDataset(images, torch.randint(_NUM_CLASSES, (_NUM_LARGE_SAMPLES,), generator=chance))


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
        text = torch.randint(vocabulary, (_NUM_LARGE_SAMPLES, tokens + 1), generator=chance)
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
