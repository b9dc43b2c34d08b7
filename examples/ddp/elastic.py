"""Handwritten digits with DistributedDataParallel, on one process or, with torchrun, on several."""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import elasticflow


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images of shape (64,), from 0 to 1, and their labels: to train on, and to evaluate with."""
    pixels, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    return TensorDataset(images[297:], labels[297:]), TensorDataset(images[:297], labels[:297])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=150)
    parser.add_argument("--learning-rate", type=float, default=0.2)
    args = parser.parse_args()

    dist.init_process_group()
    torch.manual_seed(0)
    train_set, test_set = digits()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=args.batch // dist.get_world_size(), sampler=sampler)
    loader = elasticflow.elastic(loader, model, optimizer, schedule)

    for epoch in loader.epochs(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
        schedule.step()
        print(f"after epoch {epoch}: learning rate {schedule.get_last_lr()[0]:.4f}")

    if dist.get_rank() == 0:
        trained = model.module.eval()
        images, labels = test_set.tensors
        accuracy = (trained(images).argmax(1) == labels).float().mean().item()
        print(f"accuracy {accuracy:.3f}")
        loader.report(accuracy=accuracy)
        torch.save(trained.state_dict(), "digits.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
