"""Jobs of the GPU runs: one whose bits any change of the computation would change, also compiled or paced; GPT-2."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.engine.models import Gpt2OfFour, Gpt2OfOne
from benchmarks.gpu.ranks import over_nccl
from elasticflow import ElasticJob, Scalar
from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.transport import Membership, Transfer, Transport

GLOBAL_BATCH_SIZE = 48
_NUM_SAMPLES, _SIDE, _WIDTH, _CLASSES = 192, 16, 32, 10
_KILLED_RANK = 1  # of a group
_KILL_IN_ITERATION = 3


class Sensitive(ElasticJob):
    """Convolutions with BatchNorm and dropout, AdamW, clipping, 8 virtual nodes.

    hyperparameters: precision: "fp32" or "bf16". kill_at: number of a transfer between workers in one step, before
    which rank 1 kills itself once; -1: never. marks: a folder in which that worker leaves a file.
    """

    virtual_nodes: ClassVar[int] = 8
    hyperparameters: Mapping[str, Scalar] = {"precision": "fp32", "kill_at": -1, "marks": ""}

    def init_model(self) -> nn.Module:
        if (kill_at := int(self.hyperparameters["kill_at"])) >= 0:
            _kill_in_transfer(self, kill_at, Path(str(self.hyperparameters["marks"])) / "killed")
        return nn.Sequential(
            *(nn.Conv2d(3, _WIDTH, 3, padding=1), nn.BatchNorm2d(_WIDTH), nn.ReLU(), nn.Dropout(0.2)),
            *(nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1), nn.BatchNorm2d(_WIDTH), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(_WIDTH, _CLASSES)),
        )

    def init_dataset(self) -> TensorDataset:
        chance = torch.Generator().manual_seed(0)
        images = torch.randn(_NUM_SAMPLES, 3, _SIDE, _SIDE, generator=chance)
        return TensorDataset(images, torch.randint(_CLASSES, (_NUM_SAMPLES,), generator=chance))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        images, classes = batch
        optimizer.zero_grad()
        in_bfloat16 = self.hyperparameters["precision"] == "bf16"
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=in_bfloat16):
            loss = nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss


class Compiled(Sensitive):
    """The same model under torch.compile."""

    def init_model(self) -> nn.Module:
        return cast(nn.Module, torch.compile(super().init_model()))  # its compile() has no effect on an nn.Sequential


class Paced(Sensitive):
    """Steps of known length, which more workers divide. hyperparameters: step_s: of one worker, in which it rests."""

    hyperparameters: Mapping[str, Scalar] = {"precision": "bf16", "kill_at": -1, "marks": "", "step_s": 0.1}

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        time.sleep(float(self.hyperparameters["step_s"]) * len(batch[0]) / GLOBAL_BATCH_SIZE)
        return super().train(batch, model, optimizer)


class Gpt2OverNccl(Gpt2OfFour):
    """Its workers exchange gradients over NCCL, although they share a GPU."""

    def init_model(self) -> nn.Module:
        over_nccl()
        return super().init_model()


class LimitedGpt2(Gpt2OfOne):
    """hyperparameters: memory_bytes: of the GPU, that its process may use; 0: all. On CPUs, as many samples fit."""

    hyperparameters: Mapping[str, Scalar] = {"million_parameters": 124, "memory_bytes": 0}

    def init_model(self) -> nn.Module:
        limit = int(self.hyperparameters["memory_bytes"])
        if limit and torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
        return super().init_model()

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        limit = int(self.hyperparameters["memory_bytes"])
        if limit and not batch[0].is_cuda and len(batch[0]) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory: a model of it")
        return super().train(batch, model, optimizer)


class _KillingTransport:
    """Ends its process before a transfer of one iteration, if no process has done so before."""

    def __init__(self, transport: Transport, job: ElasticJob, kill_at: int, mark: Path) -> None:
        self._transport, self._job, self._kill_at, self._mark = transport, job, kill_at, mark
        self._num_transfers = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def begin_exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Callable[[], None]:
        self._count()
        return self._transport.begin_exchange(sends, receives)

    def broadcast(self, tensors: list[torch.Tensor], *, source: int) -> None:
        self._count()
        self._transport.broadcast(tensors, source=source)

    def _count(self) -> None:
        if self._job.iteration != _KILL_IN_ITERATION:
            return
        if self._num_transfers == self._kill_at:
            with suppress(FileExistsError):
                os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        self._num_transfers += 1


def _kill_in_transfer(job: ElasticJob, kill_at: int, mark: Path) -> None:
    """Set the killing transport for the groups of this process from now on."""
    make = groups.device_transport

    def killing(gloo: Any, member: Membership, **settings: Any) -> Any:
        transport = make(gloo, member, **settings)
        return _KillingTransport(transport, job, kill_at, mark) if member.rank == _KILLED_RANK else transport

    groups.device_transport = killing
