"""A multilayer perceptron on scikit-learn's wine data (178 wines, 13 measurements, 3 growers).

The data set is tiny, so each wine is seen through many noisy measurements: enough work for several GPUs.
"""

from collections.abc import Mapping

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elasticflow import ElasticJob, Scalar

_HELD_OUT_EVERY = 5  # wines


class Wine(ElasticJob):
    """Reaches an accuracy of 0.97 on the held-out wines within 50 iterations."""

    hyperparameters: Mapping[str, Scalar] = {
        "global_batch_size": 128,
        "learning_rate": 0.001,
        "width": 256,
        "measurements": 32,  # noisy measurements of each wine in a batch
        "noise": 0.3,  # standard deviation, in those of the data
    }
    virtual_nodes = 8  # such a small model would be measured to have fewer, and grow to fewer GPUs
    max_iterations = 150
    model_name = "wine-mlp"
    description = "MLP on measurements of wines"
    evaluate_every = 50

    def init_model(self) -> nn.Module:
        width = int(self.hyperparameters["width"])
        return nn.Sequential(
            nn.Linear(13, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 3),
        )

    def init_dataset(self) -> TensorDataset:
        measurements, growers = _wines()
        kept = torch.arange(len(growers)) % _HELD_OUT_EVERY != 0
        return TensorDataset(measurements[kept], growers[kept])

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=float(self.hyperparameters["learning_rate"]))

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        measurements, growers = (
            part.repeat_interleave(int(self.hyperparameters["measurements"]), dim=0) for part in batch
        )
        noise = float(self.hyperparameters["noise"]) * torch.randn_like(measurements)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(measurements + noise), growers)
        loss.backward()
        optimizer.step()
        return loss

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        measurements, growers = (part[::_HELD_OUT_EVERY] for part in _wines())
        device = next(model.parameters()).device
        guesses = model(measurements.to(device)).argmax(1).cpu()
        return {"accuracy": (guesses == growers).float().mean().item()}


def _wines() -> tuple[torch.Tensor, torch.Tensor]:
    """Measurements with mean 0 and standard deviation 1, shape (178, 13), and the growers."""
    raw, growers = load_wine(return_X_y=True)
    measurements = torch.tensor(raw, dtype=torch.float32)
    return (measurements - measurements.mean(0)) / measurements.std(0), torch.tensor(growers)
