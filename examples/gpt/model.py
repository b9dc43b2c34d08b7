"""A GPT as Llama has it: RMSNorm, rotary positions, gated feed-forward blocks, and an output that shares the embedding.

It reads bytes, so that it needs no tokenizer: its text are the help texts that ship with Python.
"""

from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

_NUM_BYTES = 256


@dataclass(frozen=True)
class GptConfig:
    """The sizes of a model; the default has 0.8 million parameters."""

    width: int = 128
    num_blocks: int = 4
    num_heads: int = 4
    context: int = 64  # bytes


class Gpt(nn.Module):
    """Maps bytes of shape (batch, context) to logits of shape (batch, context, 256)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_NUM_BYTES, config.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_blocks))
        self.norm = nn.RMSNorm(config.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden) @ self.embedding.weight.T

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Nats for each byte but the first, for tokens of shape (batch, context + 1)."""
        return cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Block(nn.Module):
    """Attention to earlier positions, and a gated feed-forward network."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        width, self._num_heads = config.width, config.num_heads
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.gate_and_value = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self._attention(self.attention_norm(hidden))
        gate, value = self.gate_and_value(self.feed_forward_norm(hidden)).chunk(2, dim=-1)
        return hidden + self.down(silu(gate) * value)

    def _attention(self, hidden: torch.Tensor) -> torch.Tensor:
        heads = self.queries_keys_values(hidden).unflatten(-1, (3 * self._num_heads, -1)).transpose(1, 2)
        queries, keys, values = heads.chunk(3, dim=1)
        attended = scaled_dot_product_attention(rotated(queries), rotated(keys), values, is_causal=True)
        return self.attended(attended.transpose(1, 2).flatten(2))


def rotated(heads: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of a head's numbers by angles that grow with the position. heads: (batch, heads, position, size)."""
    position = torch.arange(heads.shape[-2], device=heads.device)
    speeds = 10_000.0 ** (-torch.arange(0, heads.shape[-1], 2, device=heads.device) / heads.shape[-1])
    angles = position[:, None] * speeds
    first, second = heads.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


def text() -> torch.Tensor:
    """About 700,000 bytes, of shape (length,)."""
    return torch.tensor(list("\n".join(topics[name] for name in sorted(topics)).encode()), dtype=torch.uint8)


def batch_of(data: torch.Tensor, step: int, size: int, context: int) -> torch.Tensor:
    """The random windows of one step, of shape (size, context + 1): the same in each process."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(data) - context, (size,), generator=generator)
    return torch.stack([data[start : start + context + 1] for start in starts]).long()
