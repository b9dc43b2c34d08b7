"""Jobs whose workers record for what their hosts wait in each step."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elasticflow import ElasticJob
from elasticflow.services.executor.worker.group.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.process.device import DeviceNumbers


class Plain(ElasticJob):
    """hyperparameters: record: a folder. In its file there each worker writes one line for each call of train(), with
    the iteration; "data": a wait for what peers have sent; "flags": a read of truth values of the device; "metrics": a
    read of those of an iteration; "step": of the optimizer. Digests of gradients are left out: they are read in their
    own step on CPUs only."""

    virtual_nodes = 4

    def init_model(self) -> nn.Module:
        self._note_calls(GlooTransport, "wait", lambda _: "data")
        self._note_calls(torch.Tensor, "tolist", lambda tensor: "flags" if tensor.dtype is torch.bool else "")
        self._note_calls(DeviceNumbers, "read", _metrics_of)
        begin = DeviceNumbers.__init__

        def begin_with_iteration(numbers: Any, *arguments: Any) -> None:
            numbers.iteration = self.iteration
            begin(numbers, *arguments)

        DeviceNumbers.__init__ = begin_with_iteration
        return nn.Linear(3, 1)

    def init_dataset(self) -> Any:
        return TensorDataset(torch.randn(64, 3, generator=torch.Generator().manual_seed(1)))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer.register_step_post_hook(lambda *_: self._note("step"))
        return optimizer

    def train(self, batch: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        self._note(f"train {self.iteration}")
        optimizer.zero_grad()
        loss = model(batch[0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def _note_calls(self, owner: type, name: str, what: Callable[[Any], str]) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        @wraps(method)
        def noted(this: Any, *arguments: Any) -> Any:
            self._note(what(this))
            return method(this, *arguments)

        setattr(owner, name, noted)

    def _note(self, what: str) -> None:
        if not what:
            return
        with (Path(str(self.hyperparameters["record"])) / str(os.getpid())).open("a") as file:
            file.write(what + "\n")


def _metrics_of(numbers: Any) -> str:
    return "" if any("digest" in names for names in numbers.names) else f"metrics {numbers.iteration}"


class Normalized(Plain):
    def init_model(self) -> nn.Module:
        return nn.Sequential(super().init_model(), nn.BatchNorm1d(1))


class Fast(Plain):
    reproducible = "fast"
