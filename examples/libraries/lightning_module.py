"""Handwritten digits with a Lightning module: by itself, or as an elastic job."""

import pytorch_lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from elasticflow.adapters.lightning import elastic_trainer

Batch = tuple[torch.Tensor, torch.Tensor]  # images of shape (number, 64), and their labels


class Digits(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return cross_entropy(self.layers(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    torch.manual_seed(0)
    pixels, numbers = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(numbers)
    module = Digits()
    trainer = pytorch_lightning.Trainer(max_epochs=10, gradient_clip_val=1.0, logger=False)
    trainer = elastic_trainer(trainer)
    trainer.fit(module, DataLoader(TensorDataset(images[297:], labels[297:]), batch_size=150, shuffle=True))

    trained = module.cpu().eval()
    accuracy = (trained.layers(images[:297]).argmax(1) == labels[:297]).float().mean().item()
    print(f"accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
