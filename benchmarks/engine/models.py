"""The models that every mode trains.

A perceptron is the worst case: it computes least for each byte of weights and gradients. A small GPT computes like a
language model, on a batch small enough for two cores.
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
