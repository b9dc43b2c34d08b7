"""Training jobs that cost almost nothing and log each step; some also talk, leave files, or die. For workers only.

The log file of a worker (logs/<job_id>/g<generation>-r<rank>.log) identifies it; all processes of the machine share the
clock.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elasticflow import ElasticJob, Scalar

SLOW_DOWN_S = 0.2  # of each step


class Steps(ElasticJob):
    """hyperparameters: step_s: minimum duration of a step. Optional: sample_s: of each sample, besides; slow_down: a
    file; while it exists, steps are so slow that the job does not end before the test's events, on any machine."""

    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 8, "step_s": 0.02}
    max_iterations = 100
    reproducible = "fast"  # one call of train is one step of a worker

    def init_model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def init_dataset(self):
        points = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sum(1, keepdim=True))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, batch, model, optimizer):
        points, targets = batch
        print(f"step {self.iteration} of process {os.getpid()} begins at {time.monotonic():.6f}")
        time.sleep(self.hyperparameters["step_s"] + len(points) * self.hyperparameters.get("sample_s", 0.0))
        if (file := self.hyperparameters.get("slow_down")) and Path(file).exists():
            time.sleep(SLOW_DOWN_S)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        optimizer.step()
        print(f"step {self.iteration} of process {os.getpid()} ends at {time.monotonic():.6f}")
        return loss


class HoldsTheLock(Steps):
    """Its third step waits in a library that keeps the lock of the interpreter. A signal ends the wait."""

    def train(self, batch, model, optimizer):
        if self.iteration == 3:
            ctypes.PyDLL(None).sleep(20)
        return super().train(batch, model, optimizer)


class OneIsSlow(Steps):
    """The first worker that creates the file `taken` takes delay_s longer for each sample; a later one on its GPU does
    not. hyperparameters: both, and those of `Steps`."""

    def init_dataset(self):
        with contextlib.suppress(FileExistsError):
            Path(self.hyperparameters["taken"]).touch(exist_ok=False)
            self._delay_s = self.hyperparameters["delay_s"]
        return super().init_dataset()

    def train(self, batch, model, optimizer):
        time.sleep(len(batch[0]) * getattr(self, "_delay_s", 0.0))
        return super().train(batch, model, optimizer)


class Heavy(Steps):
    """hyperparameters: fits: the most samples that its memory holds at once."""

    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 8, "step_s": 0.005, "fits": 3}

    def train(self, batch, model, optimizer):
        if len(batch[0]) > self.hyperparameters["fits"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().train(batch, model, optimizer)


# --- jobs that write lines -----------------------------------------------------------------------------


class Talks(Steps):
    def train(self, batch, model, optimizer):
        print(f"iteration {self.iteration + 1}")
        return super().train(batch, model, optimizer)


class Floods(Steps):
    """Writes 100,000 numbered lines in each iteration, half of them from a child process."""

    def train(self, batch, model, optimizer):
        self._print(0)
        child = os.fork()
        if not child:
            self._print(1)
            os._exit(0)
        os.waitpid(child, 0)
        return super().train(batch, model, optimizer)

    def _print(self, part):
        first = (2 * self.iteration + part) * 50_000
        os.write(1, "".join(f"{number:099d}\n" for number in range(first, first + 50_000)).encode())


class InGangs(Steps):
    """Two GPUs hold the model of each replica."""

    gpus_per_replica = 2
    virtual_nodes = 4
    reproducible = "bitwise"

    def init_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


# --- a job that leaves files ---------------------------------------------------------------------------


class Writes(Steps):
    """Writes a file, one that is larger than a test's bound, and a link to a file outside."""

    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 8, "step_s": 0.01, "large_bytes": 0}

    def init_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        folder = self.artifacts_folder
        (folder / "plots").mkdir(exist_ok=True)
        (folder / "plots" / "loss.csv").write_text("0,1.5\n")
        (folder / "large.bin").write_bytes(b"x" * int(self.hyperparameters["large_bytes"]))
        if not (folder / "passwd").is_symlink():
            os.symlink("/etc/passwd", folder / "passwd")
        return {"written": 1.0}


# --- a job that dies -----------------------------------------------------------------------------------


class Dies(Steps):
    def train(self, batch, model, optimizer):
        if self.iteration == 3:
            print("the disk of the data set is gone")
            os._exit(7)
        return super().train(batch, model, optimizer)
