"""Training functions for tests: tiny, each with one property to observe. Imported by workers only."""

import contextlib
import errno
import gc
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from elasticflow import ElasticJob, Scalar, mean

NUM_SAMPLES = 50
SLOW_DOWN_S = 0.001  # times the square of the iterations done, in each part of a batch: 40 steps take over a minute


class Numbered(Dataset):
    """Points, each with its index."""

    def __init__(self) -> None:
        self.points = torch.randn(NUM_SAMPLES, 4, generator=torch.Generator().manual_seed(1))
        self.targets = self.points.prod(1, keepdim=True)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int):
        return index, self.points[index], self.targets[index]


class Points(ElasticJob):
    """hyperparameters: step_s: minimum duration of a step; record: folder for the indices of the samples seen;
    slow_down: a file; while it exists, each step takes longer than the last, so that the job does not end before the
    test's events, on any machine.

    It learns so slowly that its loss stays finite in a long run: some tests wait for the machine.
    """

    hyperparameters: Mapping[str, Scalar] = {
        "learning_rate": 0.003,
        "step_s": 0.0,
        "record": "",
        "slow_down": "",
        "slow_down_s": SLOW_DOWN_S,
    }

    def init_model(self):
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def init_dataset(self):
        return Numbered()

    def init_optimizer(self, model):
        rate = self.hyperparameters["learning_rate"]
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def train(self, batch, model, optimizer):
        numbers, points, targets = batch
        self.slow_down()
        if record := self.hyperparameters["record"]:
            with (Path(record) / str(os.getpid())).open("a") as file:
                file.write(" ".join(map(str, [self.iteration, *numbers.tolist(), *self.more(points)])) + "\n")
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        optimizer.step()
        time.sleep(self.hyperparameters["step_s"])
        return loss

    def slow_down(self):
        if (file := self.hyperparameters["slow_down"]) and Path(file).exists():
            time.sleep(self.hyperparameters["slow_down_s"] * self.iteration**2)

    def more(self, points):
        """Return more values for the record folder."""
        return []


class WithScale(Numbered):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def __getitem__(self, index: int):
        return index, self.points[index] * self.scale, self.targets[index]


class ChangesData(Points):
    """hyperparameters: changed: what it changes in iteration 3, the data set or what collate() reads."""

    hyperparameters: Mapping[str, Scalar] = {**Points.hyperparameters, "changed": ""}
    scale = 1.0

    def init_dataset(self):
        self.data = WithScale()
        return self.data

    def collate(self, samples):
        numbers, points, targets = super().collate(samples)
        return numbers, points * self.scale, targets

    def train(self, batch, model, optimizer):
        if self.iteration == 3 and (changed := self.hyperparameters["changed"]):
            (self.data if changed == "dataset" else self).scale = 3.0
        return super().train(batch, model, optimizer)


class OneStartsLate(Points):
    """hyperparameters: first: a file; the worker that makes it takes late_s to make its model."""

    hyperparameters: Mapping[str, Scalar] = {**Points.hyperparameters, "first": "", "late_s": 0.0}

    def init_model(self):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.hyperparameters["first"], os.O_CREAT | os.O_EXCL))
            time.sleep(self.hyperparameters["late_s"])
        return super().init_model()


class Waiting(Points):
    """Each virtual node sleeps for VIRTUAL_NODE_S of its node's environment: other load does not change that speed."""

    virtual_nodes = 16

    def train(self, batch, model, optimizer):
        time.sleep(float(os.environ["VIRTUAL_NODE_S"]))
        return super().train(batch, model, optimizer)


class EvaluatesInParts(Points):
    evaluate_every = 5
    evaluates_in_parts = True

    def evaluate_part(self, model, part, num_parts):
        data = self.init_dataset()
        _, points, targets = self.collate([data[i] for i in range(part, len(data), num_parts)])
        return {"squares": nn.functional.mse_loss(model(points), targets, reduction="sum"), "samples": len(points)}

    def metrics_of_sums(self, sums):
        return {"error": sums["squares"] / sums["samples"], "samples": sums["samples"]}


class Scaled(Points):
    """hyperparameters: scales: whether its scaler does anything, which is no state of the job."""

    def init_optimizer(self, model):
        self.scaler = torch.amp.GradScaler("cpu", enabled=bool(self.hyperparameters["scales"]))
        return super().init_optimizer(model)

    def train(self, batch, model, optimizer):
        _, points, targets = batch
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        self.scaler.scale(loss).backward()
        optimizer.step()
        return loss


class ScaledAndFast(Scaled):
    reproducible = "fast"


class TooBig(Points):
    """hyperparameters: fits: the most samples that its memory holds at once."""

    def train(self, batch, model, optimizer):
        if len(batch[0]) > self.hyperparameters["fits"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().train(batch, model, optimizer)


class ErrorOfTheAllocator(Points):
    """Requests more memory than there are addresses."""

    def train(self, batch, model, optimizer):
        torch.empty(2**46)
        return super().train(batch, model, optimizer)


class WiderWithFewerSamples(Points):
    def init_model(self):
        return nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 1))

    def init_dataset(self):
        return Subset(Numbered(), range(40))


class Forgetful(nn.Module):
    """Its output depends on the number of its calls."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)
        self.running = torch.zeros(1)

    def forward(self, points):
        self.running = 0.9 * self.running + 0.1 * points.detach().mean()
        return self.body(points) - self.running


class HiddenState(Points):
    def init_model(self):
        return nn.Sequential(Forgetful())


class OtherGradient(torch.autograd.Function):
    """Its backward pass differs from call to call, as that of attention on a GPU may."""

    calls: ClassVar[list[None]] = []

    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        OtherGradient.calls.append(None)
        return gradient * (1 + len(OtherGradient.calls))


class OtherGradients(Points):
    def init_model(self):
        body = super().init_model()
        body.register_forward_hook(lambda _, __, output: OtherGradient.apply(output))
        return body


class Caching(nn.Linear):
    """It keeps its output in an attribute."""

    def forward(self, points):
        self.last = super().forward(points)
        return self.last


class ScheduleInAttribute(Points):
    """hyperparameters: by_iteration: whether the iteration determines the schedule, or the schedule steps by itself."""

    def init_optimizer(self, model):
        optimizer = super().init_optimizer(model)
        self.schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000)
        return optimizer

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        if self.hyperparameters["by_iteration"]:
            self.schedule.last_epoch = self.iteration
        self.schedule.step()
        return loss


class UnseededModel(Points):
    def init_model(self):
        torch.seed()
        return super().init_model()


class HarmlessCache(Points):
    def init_model(self):
        return Caching(4, 1)


class LosesItsGpu(Points):
    def train(self, batch, model, optimizer):
        if self.iteration == 5:
            raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors ...")
        return super().train(batch, model, optimizer)


class Seen(set[int]):
    """No plain state."""


class Scheduled(Points):
    """Its learning rate depends on an attribute, which differs in a worker that joins later."""

    iterations: ClassVar = Seen()

    def train(self, batch, model, optimizer):
        self.iterations.add(self.iteration)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / len(self.iterations)
        return super().train(batch, model, optimizer)


class Fast(Points):
    reproducible = "fast"


class NeedsTwoSamples(Fast):
    """It needs two samples, as a batch normalization does."""

    def train(self, batch, model, optimizer):
        if len(batch[0]) < 2:
            raise ValueError("expected more than 1 value per channel")
        return super().train(batch, model, optimizer)


class BitwiseNeedsTwoSamples(Points):
    """The same, with a time for each call that is the same for any samples."""

    def train(self, batch, model, optimizer):
        if len(batch[0]) < 2:
            raise ValueError("expected more than 1 value per channel")
        return super().train(batch, model, optimizer)


class WithAnUnusedLayer(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
        self.unused = nn.Linear(2, 2)


class UnusedAndFast(Fast):
    def init_model(self):
        return WithAnUnusedLayer()


class UnusedFoundAndFast(UnusedAndFast):
    find_unused_parameters = True


class OneIsSlow(Points):
    """One worker, the first to create the file `taken`, is slow by delay_s in each part of a batch."""

    def init_dataset(self):
        with contextlib.suppress(FileExistsError):
            Path(self.hyperparameters["taken"]).touch(exist_ok=False)
            print("I am slow")
            self.delay_s = self.hyperparameters["delay_s"]
        return super().init_dataset()

    def train(self, batch, model, optimizer):
        time.sleep(getattr(self, "delay_s", 0.0))
        return super().train(batch, model, optimizer)


class OneIsSlowAndFast(OneIsSlow):
    reproducible = "fast"


class Wide(Points):
    """More numbers than a connection accepts at once."""

    virtual_nodes = 3

    def init_model(self):
        return nn.Sequential(nn.Linear(4, 200_000), nn.Tanh(), nn.Linear(200_000, 1))


class WideAndFast(Wide):
    virtual_nodes = None
    reproducible = "fast"


class Stateful(Points):
    """Everything that could distinguish one number of workers from another.

    Dropout, statistics, noise while loading and after the backward pass, clipping, a schedule, a layer that only some
    batches use, uneven parts.
    """

    data_workers = 1
    evaluate_every = 10
    hyperparameters: Mapping[str, Scalar] = {**Points.hyperparameters, "learning_rate": 0.05, "dies_at": -1}

    def init_model(self):
        return Branching()

    def init_dataset(self):
        return Noisy()

    def init_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.hyperparameters["learning_rate"])

    def train(self, batch, model, optimizer):
        numbers, points, targets = batch
        self.slow_down()
        for group in optimizer.param_groups:
            group["lr"] = self.hyperparameters["learning_rate"] / (1 + 0.1 * self.iteration)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        if self.iteration == self.hyperparameters["dies_at"]:
            self.die_unless_another_has()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad += 1e-4 * torch.randn_like(parameter)
        optimizer.step()
        return {"loss": loss, "norm": norm, "noise": np.random.rand(), "first": float(numbers[0])}

    def die_unless_another_has(self):
        with contextlib.suppress(FileExistsError):
            (Path(self.hyperparameters["record"]) / "dead").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)

    def evaluate(self, model):
        return {"evaluated": model(torch.randn(5, 4)).sum().item()}


class Counter:
    """The simplest object with a state."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class WithAdditionalState(Stateful):
    """Its learning rate follows a schedule that multiplies it, and its loss a number. A part of its model has no
    optimizer, so that gradients add up, which count in the clipping. hyperparameters: grows: a worker's own calls
    count."""

    def init_model(self):
        return WithTeacher()

    def init_optimizer(self, model):
        optimizer = torch.optim.AdamW(model.body.parameters(), lr=self.hyperparameters["learning_rate"])
        self.warmth = 1.0
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.steps_begun = Counter()
        self.calls = itertools.count(1)  # no plain state
        return optimizer

    def stateful(self):
        return {"schedule": self.schedule, "average": self.average, "steps_begun": self.steps_begun}

    def train(self, batch, model, optimizer):
        _, points, targets = batch
        self.slow_down()
        self.steps_begun.count += 1
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets) * self.warmth
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        if self.iteration == self.hyperparameters["dies_at"]:
            self.die_unless_another_has()
        optimizer.step()
        self.warmth *= 0.99
        with torch.no_grad():
            model.teacher.data.mul_(0.9).add_(model.body[0].weight.data, alpha=0.1)
        self.schedule.step()
        self.average.update_parameters(model)
        if self.hyperparameters.get("grows"):
            self.steps_begun.count += next(self.calls)
        return {"loss": loss, "begun": self.steps_begun.count, "averaged": int(self.average.n_averaged)}


class DecidesInEvaluation(Points):
    """Its evaluations decide about the rate, halve the weights, and end the job."""

    evaluate_every = 5

    def init_optimizer(self, model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return optimizer

    def stateful(self):
        return {"schedule": self.schedule}

    def evaluate(self, model):
        weight = sum(float(each.abs().sum()) for each in model.parameters())
        self.schedule.step(weight)
        with torch.no_grad():
            for each in model.parameters():
                each.mul_(0.5)
        self.is_over = self.iteration >= 30
        return {"weight": weight, "rate": self.schedule.get_last_lr()[0]}


class RemembersEvaluations(Stateful):
    """Evaluates each iteration, and keeps a list of them."""

    evaluate_every = 1

    def init_model(self):
        self.history = list[int]()
        return super().init_model()

    def evaluate(self, model):
        self.history.append(self.iteration)
        return {"first": float(self.history[0]), "number": float(len(self.history)), "at": float(self.iteration)}


class Factored(Points):
    def init_optimizer(self, model):
        return torch.optim.Adafactor(model.parameters())


class Unloadable:
    def state_dict(self):
        return {}


class NamesVirtualNodes(Stateful):
    """Its code says how many it has."""

    virtual_nodes = 4


class NamesTheDefault(Stateful):
    """Its code says the number of virtual nodes that training tasks have by default: a profiling run measures none."""

    virtual_nodes = 8


class StatefulWithoutLoading(Points):
    def stateful(self):
        return {"average": Unloadable()}


class StatefulNamedAsTheModel(Points):
    def stateful(self):
        return {"model": Counter()}


class Noisy(Numbered):
    """Adds a little noise to its points at each read."""

    def __getitem__(self, index):
        number, point, target = super().__getitem__(index)
        return number, point + 0.1 * torch.randn(4), target


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 33), nn.BatchNorm1d(33), nn.Tanh(), nn.Dropout(0.3), nn.Linear(33, 1))
        self.extra = nn.Linear(4, 1)
        self.register_buffer("constant", torch.tensor([0.1, 0.7]))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, points):
        if self.training:
            self.steps += 1
        output = self.body(points)
        return output + self.extra(points) if points.sum() > 0 else output


class WithTeacher(Branching):
    """A job with a momentum teacher, and a buffer that its state_dict lacks."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Parameter(self.body[0].weight.detach().clone(), requires_grad=False)
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def forward(self, points):
        if self.training:
            self.passes += 1
        return super().forward(points) * (1 + 0.01 * self.passes) + (points @ self.teacher.T).mean(1, keepdim=True)


class ReturnsNoMetrics(Points):
    def train(self, batch, model, optimizer):
        super().train(batch, model, optimizer)
        return {}


class SkipsSomeParts(Points):
    def train(self, batch, model, optimizer):
        return super().train(batch, model, optimizer) if 3 not in batch[0] else 0.0


class TooManyVirtualNodes(Points):
    virtual_nodes = 17


class Approximate(Points):
    reproducible = "roughly"


class Sparse(Points):
    def init_model(self):
        return nn.Embedding(NUM_SAMPLES, 1, sparse=True)

    def train(self, batch, model, optimizer):
        loss = model(batch[0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss


class RepeatsItsClosure(torch.optim.SGD):
    """It repeats its closure, as second-order and sharpness-aware optimizers do."""


class Closure(Points):
    def init_optimizer(self, model):
        return RepeatsItsClosure(model.parameters(), lr=0.1)

    def train(self, batch, model, optimizer):
        optimizer.step(lambda: 0.0)
        return 0.0


class TwoBackwards(Points):
    """The first loss, then a penalty on large outputs; gradients are not set to zero in between."""

    def train(self, batch, model, optimizer):
        _, points, targets = batch
        optimizer.zero_grad(set_to_none=False)
        nn.functional.mse_loss(model(points), targets).backward()
        penalty = 0.01 * model(points).square().mean()
        penalty.backward()
        optimizer.step()
        return penalty


class ChangesBuffersLate(Points):
    """It changes buffers, as an average of the parameters after each step would."""

    def init_model(self):
        model = super().init_model()
        model.register_buffer("average", torch.zeros(()))
        return model

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        model.average += 1
        return loss


class ChangesBuffersLateOnce(ChangesBuffersLate):
    """Not in the task that the manager measures."""

    def train(self, batch, model, optimizer):
        return super().train(batch, model, optimizer) if self.iteration else Points.train(self, batch, model, optimizer)


class DiskFull(Points):
    """hyperparameters: failures: the number of checkpoints that the disk rejects."""

    def init_model(self):
        fsync, failures = os.fsync, [None] * self.hyperparameters["failures"]

        def failing_fsync(fd):
            if failures:
                failures.pop()
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(fd)

        os.fsync = failing_fsync
        return super().init_model()


class CountsDown(Points):
    """Its metric falls by one in each iteration; only rank 0 evaluates."""

    evaluate_every = 2

    def train(self, batch, model, optimizer):
        return {"loss": super().train(batch, model, optimizer), "remaining": 100.0 - self.iteration}

    def evaluate(self, model):
        return {"evaluated_at": float(self.iteration)}


class KillsItself(Points):
    def train(self, batch, model, optimizer):
        if self.iteration == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(batch, model, optimizer)


class StartsProcesses(Points):
    """Leaves child processes behind, and logs their ids: one of its own, one in a session of its own, and a daemon of
    which nothing says where it comes from."""

    def init_model(self):
        for in_own_session in (False, True):
            print(f"child={subprocess.Popen(['sleep', '600'], start_new_session=in_own_session).pid}")
        daemon = "setsid sleep 600 </dev/null >/dev/null 2>&1 & echo child=$!"
        subprocess.run(["sh", "-c", daemon], env={"PATH": os.environ["PATH"]}, start_new_session=True, check=True)
        return super().init_model()


class NumpyInOptimizer(Points):
    """Like a learning rate computed with numpy."""

    def train(self, batch, model, optimizer):
        optimizer.param_groups[0]["lr"] = np.float64(0.1) / (1 + self.iteration)
        return super().train(batch, model, optimizer)


class ReturnsText(Points):
    def train(self, batch, model, optimizer):
        return "all went well"


class NoModel(Points):
    def init_model(self):
        return None


class TwoOptimizers(Points):
    def init_optimizer(self, model):
        return torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)


class Exits(Points):
    def train(self, batch, model, optimizer):
        sys.exit()


class Endless(Points):
    def init_dataset(self):
        return iter(range(10))


class Garbage:
    """A reference cycle alone holds it. Logs which process collects it."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        print(f"collected by {os.getpid()}")


class LeavesGarbage(Points):
    """Creates garbage before the reader processes start, and they run the collector."""

    data_workers = 1

    def init_dataset(self):
        print(f"made by {os.getpid()}")
        gc.disable()
        Garbage()
        return Collecting()


class Collecting(Numbered):
    def __getitem__(self, index):
        gc.collect()
        return super().__getitem__(index)


class HoldsMemory(Points):
    """hyperparameters: held_mib: memory of its device. Reader processes inherit what they can of it."""

    data_workers = 2

    def init_model(self):
        model = super().init_model()
        held = torch.zeros(self.hyperparameters["held_mib"], 1024, 1024, dtype=torch.uint8)
        model.register_buffer("held", held, persistent=False)
        return model


class PartitionedPoints(Noisy):
    partition_sizes = (7, 13, 0, 20, 10)


class InPartitions(Points):
    shuffle_window = 24

    def init_dataset(self):
        return PartitionedPoints()

    def more(self, points):
        """Every part has different noise."""
        return [points.double().sum().item()]


class Files:
    """The same points, streamed. lost: samples missing in the last file."""

    partition_sizes = PartitionedPoints.partition_sizes

    def __init__(self, lost=0):
        self.points = Noisy()
        self.lost = lost

    def read_partition(self, partition, start):
        first = sum(self.partition_sizes[:partition])
        end = first + self.partition_sizes[partition]
        for index in range(first + start, min(end, NUM_SAMPLES - self.lost)):
            yield self.points[index]


class FromFiles(InPartitions):
    data_workers = 2

    def init_dataset(self):
        return Files()


class FromATornFile(Points):
    def init_dataset(self):
        return Files(lost=1)


class Stream(IterableDataset):
    """The same points, in an order of its own."""

    def __len__(self):
        return NUM_SAMPLES

    def __iter__(self):
        points = Noisy()
        for index in torch.randperm(NUM_SAMPLES).tolist():
            yield points[index]


class FromAStream(InPartitions):
    def init_dataset(self):
        return Stream()


class UnsizedStream(IterableDataset):
    """The same without a length, and with what divides a stream among workers: nothing here."""

    def __iter__(self):
        assert get_worker_info() is None
        assert (os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")) == ("0", "1")
        return iter(Stream())


class FromAnUnsizedStream(FromAStream):
    def init_dataset(self):
        return UnsizedStream()


class Shards(IterableDataset):
    """The same points in the tar files of WebDataset, which shuffles them."""

    def __init__(self):
        self.folder, self.epoch = tempfile.TemporaryDirectory(), 0
        points = Noisy()
        for first in range(0, NUM_SAMPLES, 10):
            with tarfile.open(f"{self.folder.name}/{first}.tar", "w") as tar:
                for index in range(first, first + 10):
                    _, point, target = points[index]
                    content = json.dumps([point.tolist(), target.tolist()]).encode()
                    member = tarfile.TarInfo(f"{index}.json")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        import webdataset

        urls = [f"{self.folder.name}/{first}.tar" for first in range(0, NUM_SAMPLES, 10)]
        shards = webdataset.WebDataset(urls, shardshuffle=5, detshuffle=True, seed=self.epoch)
        for sample in shards.shuffle(20, seed=self.epoch).decode():
            yield int(sample["__key__"]), *map(torch.tensor, sample["json"])


class FromShards(FromAStream):
    def init_dataset(self):
        return Shards()


class UnseededStream(IterableDataset):
    def __iter__(self):
        points = Noisy()
        for index in np.random.default_rng().permutation(NUM_SAMPLES):
            yield points[int(index)]


class FromAnUnseededStream(FromAStream):
    def init_dataset(self):
        return UnseededStream()


class InPartitionsReadHere(InPartitions):
    data_workers = 0


class FromFilesReadHere(FromFiles):
    data_workers = 0


class FromAStreamReadHere(FromAStream):
    data_workers = 0


class FromShardsReadHere(FromShards):
    data_workers = 0


class FromAnUnsizedStreamReadHere(FromAnUnsizedStream):
    data_workers = 0


class OfAnySize(Points):
    def init_dataset(self):
        return Subset(Numbered(), range(int(self.hyperparameters["num_samples"])))


class Layered(nn.Module):
    """Layers in a list, of sizes that no power of two divides, and dropout."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.first = nn.Linear(4, 7)
        layers = (nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Dropout(dropout)) for _ in range(2))
        self.layers = nn.ModuleList(layers)
        self.last = nn.Linear(7, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = self.first(points)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.last(hidden)


class InGangs(Points):
    """Its optimizer has state, its gradients are clipped by their norm, and it evaluates."""

    hyperparameters: Mapping[str, Scalar] = {**Points.hyperparameters, "dropout": 0.1}
    evaluate_every = 7

    def init_model(self):
        return Layered(self.hyperparameters["dropout"])

    def init_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.hyperparameters["learning_rate"])

    def train(self, batch, model, optimizer):
        _, points, targets = batch
        self.slow_down()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch._foreach_mul_([parameter.grad for parameter in model.parameters()], 0.9)  # once, in whatever call
        optimizer.step()
        return {"loss": loss.detach()}

    def evaluate(self, model):
        data = Numbered()
        return {"error": nn.functional.mse_loss(model(data.points), data.targets).item()}


class DividesItself(InGangs):
    """It divides its model by itself. hyperparameters: meta: whether no process ever holds the whole model."""

    hyperparameters: Mapping[str, Scalar] = {**InGangs.hyperparameters, "meta": False}

    def init_model(self):
        with torch.device("meta") if self.hyperparameters["meta"] else contextlib.nullcontext():
            model = super().init_model()
        for module in (*model.layers, model):
            fully_shard(module)
        if self.hyperparameters["meta"]:
            model.to_empty(device="cpu")
            torch.manual_seed(1)
            whole = Layered(self.hyperparameters["dropout"]).state_dict()
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    mesh, placements = parameter.device_mesh, parameter.placements
                    parameter.copy_(distribute_tensor(whole[name], mesh, placements, src_data_rank=None))
        return model


class FactoredInGangs(InGangs):
    def init_optimizer(self, model):
        return torch.optim.Adafactor(model.parameters())


class WithStatisticsInGangs(InGangs):
    def init_model(self):
        return nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))


class FastInGangs(InGangs):
    reproducible = "fast"


class OwnProcessGroupInGangs(InGangs):
    def init_model(self):
        torch.distributed.init_process_group("gloo")
        return super().init_model()


class MeanInGangs(InGangs):
    def train(self, batch, model, optimizer):
        mean(model(batch[1]).mean())
        return super().train(batch, model, optimizer)


class BlocksOfAnotherModel(InGangs):
    def sharded_blocks(self, model):
        return [nn.Linear(7, 7)]


class HookedInGangs(InGangs):
    def init_model(self):
        model = super().init_model()
        model.last.bias.register_hook(torch.neg)
        return model


class ScaledInGangs(InGangs):
    def stateful(self):
        return {"scaler": torch.amp.GradScaler("cpu")}


class StreamInGangs(FromAnUnsizedStream):
    evaluate_every = 7

    def init_model(self):
        return Layered()


class ManyVirtualNodesInGangs(InGangs):
    virtual_nodes = 16
