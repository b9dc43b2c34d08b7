"""Jobs that show what a number of workers changes: `Sensitive` in every bit, `Smooth` only by rounding.

`Sensitive` uses everything that could distinguish one number from another: dropout, BatchNorm, momentum, clipping,
augmentation while reading and noise after the backward pass, a schedule, uneven parts, a layer that only some parts
use; and a buffer that counts how often each sample was seen in steps that count.

`Divided` is for gangs, and has none of the statistics of a batch.

`Smooth` is for the fast mode and has only sums over the global batch: no dropout, no statistics of a batch's part. A
parameter counts how often each sample was seen, through its gradient, because buffers come from rank 0.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset

from benchmarks.engine.transports import use_in_this_process
from elasticflow import ElasticJob, Scalar

NUM_SAMPLES = 50
GLOBAL_BATCH_SIZE = 37  # samples: uneven parts of at least two, which BatchNorm needs, for 16 virtual nodes
NUM_FEATURES, _WIDTH = 6, 24

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # numbers (B,), points (B, features), targets (B, 1)


class Sensitive(ElasticJob):
    """hyperparameters: step_s: minimum duration of a step of one worker, less for several; record: a folder in which
    each worker records its state at the beginning of each step, one line each; "": none. transport: a `TransportName`.
    is_sharded: whether a worker has a part of the optimizer's state only, which it then does not record.
    """

    hyperparameters: Mapping[str, Scalar] = {
        "learning_rate": 0.05,
        "step_s": 0.0,
        "record": "",
        "transport": "gloo",
        "is_sharded": False,
    }
    evaluate_every: ClassVar[int] = 25

    _recorded = -1  # iteration

    def init_model(self) -> nn.Module:
        use_in_this_process(str(self.hyperparameters["transport"]))
        return Branching()

    def init_dataset(self) -> Dataset[Any]:
        return Augmented()

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    def train(self, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        numbers, points, targets = batch
        self._record(model, optimizer)
        part = len(numbers) / float(self.hyperparameters["global_batch_size"])
        time.sleep(float(self.hyperparameters["step_s"]) * part)
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + 0.01 * self.iteration)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        seen = torch.bincount(numbers.cpu(), minlength=NUM_SAMPLES).to(points.device)
        model.times_seen += seen / part  # pyright: ignore[reportOperatorIssue] - buffers become the mean of all parts
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad += 1e-3 * torch.randn_like(parameter)
        optimizer.step()
        return {"loss": loss, "norm": norm}

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"evaluated": model(torch.randn(5, NUM_FEATURES).to(next(model.parameters()).device)).sum().item()}

    def _record(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        folder = str(self.hyperparameters["record"])
        if folder and self.iteration != self._recorded:
            self._recorded = self.iteration
            state = model.state_dict()
            held = digest([state] if self.hyperparameters["is_sharded"] else [state, optimizer.state_dict()])
            seen = " ".join(str(int(times)) for times in state["times_seen"].round())
            with (Path(folder) / f"{os.getpid()}.txt").open("a") as file:
                file.write(f"{self.iteration} {held} {seen}\n")


class OfFour(Sensitive):
    virtual_nodes: ClassVar[int] = 4


class OfEight(Sensitive):
    virtual_nodes: ClassVar[int] = 8
    data_workers: ClassVar[int] = 1


class OfSixteen(Sensitive):
    virtual_nodes: ClassVar[int] = 16


class Divided(Sensitive):
    """For gangs: without statistics of batches. Its lines have the digest of the whole state, without counts."""

    virtual_nodes: ClassVar[int] = 4

    def init_model(self) -> nn.Module:
        use_in_this_process(str(self.hyperparameters["transport"]))
        return Layered()

    def train(self, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        _, points, targets = batch
        self._record(model, optimizer)
        part = len(points) / float(self.hyperparameters["global_batch_size"])
        time.sleep(float(self.hyperparameters["step_s"]) * part)
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + 0.01 * self.iteration)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        torch._foreach_mul_(gradients, 0.9)  # pyright: ignore[reportPrivateImportUsage] - uncounted in divided tensors
        optimizer.step()
        return {"loss": loss}

    def _record(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        folder = str(self.hyperparameters["record"])
        if self.iteration == self._recorded:
            return
        self._recorded = self.iteration
        held = digest(_whole([model.state_dict(), optimizer.state_dict()]))
        with (Path(folder) / f"{os.getpid()}.txt").open("a") as file:
            file.write(f"{self.iteration} {held}\n")


class Layered(nn.Module):
    """No number of rows is a multiple of a gang's workers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_FEATURES, 7)
        layers = (nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Dropout(0.3)) for _ in range(2))
        self.layers = nn.ModuleList(layers)
        self.last = nn.Linear(7, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = self.first(points)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.last(hidden)


def _whole(state: Any) -> Any:
    """A collective of a gang: the state with whole tensors."""
    match state:
        case Mapping():
            return {key: _whole(value) for key, value in state.items()}
        case list() | tuple():
            return [_whole(item) for item in state]
        case torch.Tensor() if isinstance(state, DTensor):
            return state.full_tensor()
        case _:
            return state


class Numbered(Dataset[Any]):
    """Points and targets, each with its index."""

    def __init__(self) -> None:
        chance = torch.Generator().manual_seed(1)
        self._points = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=chance)
        self._targets = self._points.prod(1, keepdim=True)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self._points[index], self._targets[index]


class Augmented(Numbered):
    """The numbered samples, with a little noise at each read."""

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        number, point, target = super().__getitem__(index)
        return number, point + 0.1 * torch.randn(NUM_FEATURES), target


class Branching(nn.Module):
    times_seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(NUM_FEATURES, _WIDTH),
            nn.BatchNorm1d(_WIDTH),
            nn.Tanh(),
            nn.Dropout(0.3),
            nn.Linear(_WIDTH, 1),
        )
        self.extra = nn.Linear(NUM_FEATURES, 1)
        self.register_buffer("times_seen", torch.zeros(NUM_SAMPLES, dtype=torch.float64))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        output = self.body(points)
        return output + self.extra(points) if points.sum() > 0 else output


def digest(value: Any) -> str:
    """SHA-256 over all bits of nested dicts, lists, tuples, tensors and plain values."""
    hashed = hashlib.sha256()
    _add(hashed, value)
    return hashed.hexdigest()


def _add(hashed: Any, value: Any) -> None:
    match value:
        case Mapping():
            for key in sorted(value, key=str):
                _add(hashed, [str(key), value[key]])
        case list() | tuple():
            for item in value:
                _add(hashed, item)
        case torch.Tensor():
            hashed.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        case _:
            hashed.update(repr(value).encode())


# --- a job for the fast mode ---------------------------------------------------------------------------


_SMOOTH_WIDTH = 8


class Smooth(ElasticJob):
    """hyperparameters: as in `Sensitive`. A line has the iteration, the digest of the state, how often each sample was
    seen, and the weights."""

    reproducible: ClassVar[Literal["bitwise", "fast"]] = "fast"
    hyperparameters: Mapping[str, Scalar] = {"step_s": 0.0, "record": "", "transport": "gloo", "is_sharded": False}

    def init_model(self) -> nn.Module:
        use_in_this_process(str(self.hyperparameters["transport"]))
        self._bare = Counting()
        return self._bare

    def init_dataset(self) -> Dataset[Any]:
        return Numbered()

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        times_seen, *weights = model.parameters()
        counts = {
            "params": [times_seen],
            "lr": float(self.hyperparameters["global_batch_size"]),
            "momentum": 0.0,
        }
        return torch.optim.SGD([{"params": weights}, counts], lr=0.05, momentum=0.9)

    def train(self, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        numbers, points, targets = batch
        self._record(optimizer)
        part = len(numbers) / float(self.hyperparameters["global_batch_size"])
        time.sleep(float(self.hyperparameters["step_s"]) * part)
        optimizer.zero_grad()
        seen = torch.bincount(numbers, minlength=NUM_SAMPLES) / len(numbers)
        output, count = model(points, seen)
        loss = nn.functional.mse_loss(output, targets)
        (loss - count).backward()
        optimizer.step()
        return {"loss": loss}

    def _record(self, optimizer: torch.optim.Optimizer) -> None:
        if folder := str(self.hyperparameters["record"]):
            state = self._bare.state_dict()
            held = digest([state, optimizer.state_dict()])
            times_seen, *weights = state.values()
            seen = " ".join(str(int(times)) for times in times_seen.round())
            numbers = " ".join(f"{weight:.7g}" for tensor in weights for weight in tensor.flatten().tolist())
            with (Path(folder) / f"{os.getpid()}.txt").open("a") as file:
                file.write(f"{self.iteration} {held} {seen} {numbers}\n")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.times_seen = nn.Parameter(torch.zeros(NUM_SAMPLES, dtype=torch.float64))
        self.body = nn.Sequential(nn.Linear(NUM_FEATURES, _SMOOTH_WIDTH), nn.Tanh(), nn.Linear(_SMOOTH_WIDTH, 1))

    def forward(self, points: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.body(points), (self.times_seen * seen).sum()
