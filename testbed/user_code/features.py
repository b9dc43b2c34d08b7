"""Jobs that use features of PyTorch and of data sets, one class for each. Run by workers only."""

import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, IterableDataset

from elasticflow import ElasticJob, Scalar
from elasticflow.adapters.mlflow import MLflow
from elasticflow.adapters.tensorboard import TensorBoard
from elasticflow.shared.training_interface import running_job

SLOW_DOWN_S = 0.005  # times the square of the iterations done
STEADY_S = 0.03  # of a call of train()
NUM_IMAGES, IMAGES_IN_A_SHARD = 48, 8

Image = tuple[torch.Tensor, torch.Tensor]  # (channels, height, width), and its target (1,)


def image(index: int) -> Image:
    pixels = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(index))
    return pixels, pixels.mean().sin().unsqueeze(0)


class Images(Dataset[Image]):
    """A model with augmentation, whose random numbers follow from the job."""

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, index: int) -> Image:
        pixels, target = image(index)
        return pixels + 0.1 * torch.randn_like(pixels), target


class Network(nn.Module):
    """A model with batch norm and dropout."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(8 * 6 * 6, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.convolutions(images).flatten(1))


class Plain(ElasticJob):
    """hyperparameters: slow_down: a file; while it exists, each step takes longer than the last."""

    hyperparameters: Mapping[str, Scalar] = {"learning_rate": 0.01, "slow_down": "", "folder": ""}

    def init_model(self) -> nn.Module:
        return Network()

    def init_dataset(self) -> Any:
        return Images()

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=float(self.hyperparameters["learning_rate"]))

    def loss(self, model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(images), targets)

    def train(self, batch: Image, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        if (slow_down := str(self.hyperparameters["slow_down"])) and Path(slow_down).exists():
            time.sleep(SLOW_DOWN_S * self.iteration**2)
        optimizer.zero_grad()
        loss = self.loss(model, *batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss


class Compiled(Plain):
    def init_model(self) -> nn.Module:
        model = Network()
        model.compile()
        return model


class Autocast(Plain):
    def loss(self, model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            return super().loss(model, images, targets)


class ChannelsLast(Plain):
    def init_model(self) -> nn.Module:
        return Network().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def loss(self, model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(model, images.to(memory_format=torch.channels_last), targets)


class Checkpointing(Plain):
    """Computes activations again in the backward pass."""

    use_reentrant = False

    def loss(self, model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        images.requires_grad_()
        made = checkpoint(model, images, use_reentrant=self.use_reentrant)
        return nn.functional.mse_loss(made, targets)


class ReentrantCheckpointing(Checkpointing):
    use_reentrant = True


class DataWorkers(Plain):
    data_workers = 2


class Shards:
    """Tar files as WebDataset writes them: `KEY.image.pt` and `KEY.target.pt` follow each other."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.tar"))
        self.partition_sizes = [IMAGES_IN_A_SHARD] * len(self.files)

    def read_partition(self, partition: int, start: int) -> Iterator[Image]:
        with tarfile.open(self.files[partition]) as shard:
            members = iter(shard)
            for number, (pixels, target) in enumerate(zip(members, members, strict=True)):
                if number >= start:
                    yield tuple(torch.load(BytesIO(shard.extractfile(each).read())) for each in (pixels, target))


class WebDataset(Plain):
    """hyperparameters: folder: of the shards."""

    shuffle_window = 16

    def init_dataset(self) -> Any:
        return Shards(Path(str(self.hyperparameters["folder"])))


class Stream(IterableDataset[Image]):
    def __len__(self) -> int:
        return NUM_IMAGES

    def __iter__(self) -> Iterator[Image]:
        return map(image, range(NUM_IMAGES))


class Streaming(Plain):
    shuffle_window = 16

    def init_dataset(self) -> Any:
        return Stream()


class Fed(Plain):
    """Writes what its sink gets, one line for each call, into `fed` in the folder."""

    def on_step(self, iteration: int, metrics: Mapping[str, float]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        with (Path(str(self.hyperparameters["folder"])) / "fed").open("a") as file:
            file.write(f"{iteration} {metrics['loss']} {os.getpid()}\n")


class SeesItsJob(Plain):
    """Writes what its sink sees of the job, one line for each call, into `seen` in the folder."""

    def on_step(self, iteration: int, metrics: Mapping[str, float]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        job = running_job()
        assert job is not None
        with (Path(str(self.hyperparameters["folder"])) / "seen").open("a") as file:
            file.write(f"{job.job_id} {job.identity} {job.deadline_s} {job.num_gpus} {job.leads} {job.has_finished}\n")


class InTensorBoard(Plain):
    @cached_property
    def on_step(self) -> TensorBoard:
        return TensorBoard(str(self.hyperparameters["folder"]))


class InMLflow(Plain):
    """With `steady`, all steps of a job with `slow_down` take as long: for more changes than growing ones have time."""

    hyperparameters: Mapping[str, Scalar] = {**Plain.hyperparameters, "uri": "", "experiment": "", "steady": ""}

    @cached_property
    def on_step(self) -> MLflow:
        return MLflow(str(self.hyperparameters["uri"]), experiment=str(self.hyperparameters["experiment"]))

    def train(self, batch: Image, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        if (steady := str(self.hyperparameters["steady"])) and Path(steady).exists():
            time.sleep(STEADY_S)
        return super().train(batch, model, optimizer)


def write_shards(folder: Path) -> None:
    for first in range(0, NUM_IMAGES, IMAGES_IN_A_SHARD):
        with tarfile.open(folder / f"{first:03}.tar", "w") as shard:
            for index in range(first, first + IMAGES_IN_A_SHARD):
                for name, tensor in zip(("image", "target"), image(index), strict=True):
                    content = BytesIO()
                    torch.save(tensor, content)
                    member = tarfile.TarInfo(f"{index:06}.{name}.pt")
                    member.size = content.tell()
                    content.seek(0)
                    shard.addfile(member, content)
