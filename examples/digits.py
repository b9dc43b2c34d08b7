"""A small convolutional network on scikit-learn's handwritten digits (1,797 images of 8 x 8 pixels)."""

from collections.abc import Mapping

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elasticflow import ElasticJob, Scalar

_NUM_HELD_OUT = 297


class Digits(ElasticJob):
    """Reaches an accuracy of 0.97 on the held-out images within 150 iterations."""

    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 256, "learning_rate": 0.1, "channels": 32}
    virtual_nodes = 8  # such a small model would be measured to have fewer, and grow to fewer GPUs
    max_iterations = 150
    model_name = "digits-cnn"
    description = "CNN on handwritten digits"
    evaluate_every = 50

    def init_model(self) -> nn.Module:
        channels = int(self.hyperparameters["channels"])
        return nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(2 * channels * 16, 10),
        )

    def init_dataset(self) -> TensorDataset:
        images, labels = _digits()
        return TensorDataset(images[_NUM_HELD_OUT:], labels[_NUM_HELD_OUT:])

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        rate = float(self.hyperparameters["learning_rate"])
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def train(
        self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> Mapping[str, torch.Tensor]:
        images, labels = batch
        optimizer.zero_grad()
        scores = model(images)
        loss = functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "train_accuracy": (scores.argmax(1) == labels).float().mean()}

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        images, labels = (part[:_NUM_HELD_OUT] for part in _digits())
        device = next(model.parameters()).device
        guesses = model(images.to(device)).argmax(1).cpu()
        return {"accuracy": (guesses == labels).float().mean().item()}


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of shape (1797, 1, 8, 8), from 0 to 1, and their labels."""
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
