"""Trains as plain.py does, with a snapshot after each epoch, from which a restart by torchrun continues."""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SNAPSHOT = "snapshot.pt"


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images of shape (64,), from 0 to 1, and their labels: to train on, and to evaluate with."""
    pixels, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    return TensorDataset(images[297:], labels[297:]), TensorDataset(images[:297], labels[:297])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-per-worker", type=int, default=50)
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
    loader = DataLoader(train_set, batch_size=args.batch_per_worker, sampler=sampler)

    first_epoch = 0
    if os.path.exists(SNAPSHOT):
        snapshot = torch.load(SNAPSHOT)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        schedule.load_state_dict(snapshot["schedule"])
        first_epoch = snapshot["epochs"]
        print(f"continues after {first_epoch} epochs")

    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
        schedule.step()
        if dist.get_rank() == 0:
            snapshot = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "epochs": epoch + 1,
            }
            torch.save(snapshot, f"{SNAPSHOT}.unfinished")
            os.replace(f"{SNAPSHOT}.unfinished", SNAPSHOT)

    if dist.get_rank() == 0:
        trained = model.module.eval()
        images, labels = test_set.tensors
        accuracy = (trained(images).argmax(1) == labels).float().mean().item()
        print(f"accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
