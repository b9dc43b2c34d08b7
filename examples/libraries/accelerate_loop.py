"""Handwritten digits in a loop with Accelerate: by itself, or as an elastic job."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from elasticflow.adapters.accelerate import elastic


def main() -> None:
    torch.manual_seed(0)
    pixels, numbers = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(numbers)
    accelerator = Accelerator()
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    loader = DataLoader(TensorDataset(images[297:], labels[297:]), batch_size=150, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    loader = elastic(accelerator, loader, model, optimizer, schedule)

    for _ in loader.epochs(10):
        for image, label in loader:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(image), label))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()

    trained = accelerator.unwrap_model(model).cpu().eval()
    accuracy = (trained(images[:297]).argmax(1) == labels[:297]).float().mean().item()
    print(f"accuracy {accuracy:.3f}")
    loader.report(accuracy=accuracy)


if __name__ == "__main__":
    main()
