"""A job that says which packages it has and what its weights are; as a script, the same training in plain PyTorch."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy
import packaging
import torch

from elasticflow import ElasticJob, Scalar

NUM_STEPS = 12
BATCH = 8


def made_model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def made_data() -> torch.utils.data.TensorDataset:
    points = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(points, points.prod(1, keepdim=True))


def made_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def step(batch, model, optimizer):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss


def bits_of(model: torch.nn.Module) -> int:
    content = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
    return int(hashlib.sha256(content).hexdigest()[:12], 16)


class OwnPackages(ElasticJob):
    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": BATCH}
    max_iterations = NUM_STEPS
    virtual_nodes = 1
    shuffle = False

    def init_model(self):
        said = {
            "Python": platform.python_version(),
            "numpy": numpy.__version__,
            "torch": torch.__version__,
            "packaging": getattr(packaging, "VERSION", ""),  # of the tests' own
            "prefix": sys.prefix,
            "is writable": os.access(sys.prefix, os.W_OK),
            "has rich": find_spec("rich") is not None,
            "tenants": os.listdir(Path(sys.prefix).parents[2]),
        }
        print("own packages", json.dumps(said), flush=True)
        return made_model()

    def init_dataset(self):
        return made_data()

    def init_optimizer(self, model):
        return made_optimizer(model)

    def train(self, batch, model, optimizer):
        return step(batch, model, optimizer)

    def evaluate(self, model):
        return {"bits": float(bits_of(model))}


if __name__ == "__main__":
    model = made_model()
    optimizer = made_optimizer(model)
    data = torch.utils.data.DataLoader(made_data(), batch_size=BATCH)
    steps = (batch for _ in range(NUM_STEPS) for batch in data)
    for _, batch in zip(range(NUM_STEPS), steps, strict=False):
        step(batch, model, optimizer)
    print(bits_of(model))
