"""Trains the GPT as a class: on one GPU for each replica, or on several that hold the model together.

    eflow submit examples/gpt/job.py --deadline 10m
    eflow submit examples/gpt/job.py --gpus-per-replica 2 --deadline 10m

The code is the same: the pool divides the model, its gradients and the optimizer's state over the GPUs of a replica.
Replicas join and leave without a stop, and their number does not change the bits of the result.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.utils.data import Dataset

from elasticflow import ElasticJob, Scalar
from examples.gpt.model import Gpt, GptConfig, text


class Windows(Dataset[torch.Tensor]):
    """The windows of the text that follow each other."""

    def __init__(self, context: int) -> None:
        self._text, self._context = text(), context

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._context

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self._context
        return self._text[start : start + self._context + 1].long()


class TrainGpt(ElasticJob):
    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 32, "width": GptConfig.width, "learning_rate": 3e-3}
    max_iterations = 300

    @property
    def config(self) -> GptConfig:
        return GptConfig(width=int(self.hyperparameters["width"]))

    def init_model(self) -> Gpt:
        return Gpt(self.config)

    def init_dataset(self) -> Windows:
        return Windows(self.config.context)

    def init_optimizer(self, model: nn.Module) -> torch.optim.AdamW:
        return torch.optim.AdamW(model.parameters(), lr=float(self.hyperparameters["learning_rate"]))

    def train(
        self, batch: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> Mapping[str, torch.Tensor]:
        assert isinstance(model, Gpt)
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss.detach()}
