"""A small transformer that learns to continue text, byte by byte, from the help texts that ship with Python."""

from collections.abc import Mapping
from functools import cache
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from elasticflow import ElasticJob, Scalar

_CONTEXT = 64  # bytes
_NUM_HELD_OUT = 64  # windows


class Text(ElasticJob):
    """Falls from 5.5 to 2.4 nats a byte within 200 iterations."""

    hyperparameters: Mapping[str, Scalar] = {
        "global_batch_size": 32,
        "learning_rate": 0.003,
        "width": 64,
        "layers": 2,
    }
    virtual_nodes = 8  # such a small model would be measured to have fewer, and grow to fewer GPUs
    max_iterations = 200
    model_name = "text-transformer"
    description = "byte-level transformer on Python's help texts"
    evaluate_every = 100

    def init_model(self) -> nn.Module:
        return ByteTransformer(int(self.hyperparameters["width"]), int(self.hyperparameters["layers"]))

    def init_dataset(self) -> Dataset[torch.Tensor]:
        return Windows(_help_texts()[_NUM_HELD_OUT * _CONTEXT :])

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=float(self.hyperparameters["learning_rate"]))

    def train(self, batch: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = _next_byte_loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        held_out = Windows(_help_texts()[: _NUM_HELD_OUT * _CONTEXT + 1])
        batch = torch.stack([held_out[index] for index in range(len(held_out))])
        device = next(model.parameters()).device
        return {"held_out_loss": _next_byte_loss(model, batch.to(device)).item()}


class Windows(Dataset[torch.Tensor]):
    """Consecutive windows of one context and the byte after it."""

    def __init__(self, text: torch.Tensor) -> None:
        self._text = text

    def __len__(self) -> int:
        return (len(self._text) - 1) // _CONTEXT

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._text[index * _CONTEXT : (index + 1) * _CONTEXT + 1].long()


class ByteTransformer(nn.Module):
    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.byte_embedding = nn.Embedding(256, width)
        self.position_embedding = nn.Embedding(_CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores of the next byte at each position, shape (batch, length, 256)."""
        length = text.shape[1]
        positions = torch.arange(length, device=text.device)
        hidden = self.byte_embedding(text) + self.position_embedding(positions)
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        return self.output(self.layers(hidden, mask=mask, is_causal=True))


def _next_byte_loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    scores = model(windows[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


@cache
def _help_texts() -> torch.Tensor:
    """Some 700,000 bytes, as one tensor."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
