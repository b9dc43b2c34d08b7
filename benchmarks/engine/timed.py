"""Jobs whose workers record the beginning of each step, and the speeds computed from that.

All processes of a machine share the monotonic clock.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from benchmarks.engine.models import Perceptron
from elasticflow import Scalar
from elasticflow.shared.messages.job_spec import JobSpec


class Timed(Perceptron):
    """hyperparameters: notes: folder. step_s: time of a GPU for a step, in which the processor rests; several workers
    divide it."""

    BATCH_SIZE = 16
    virtual_nodes: ClassVar[int] = 4
    hyperparameters: Mapping[str, Scalar] = {"million_parameters": 1, "notes": "", "step_s": 0.0}

    _noted = -1  # iteration

    def train(self, batch: list[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        if self.iteration != self._noted:
            self._noted = self.iteration
            with (Path(str(self.hyperparameters["notes"])) / str(os.getpid())).open("a") as file:
                file.write(f"{self.iteration} {time.monotonic()}\n")
        time.sleep(float(self.hyperparameters["step_s"]) * len(batch[0]) / self.BATCH_SIZE)
        return super().train(batch, model, optimizer)


def timed_spec(
    notes: Path,
    *,
    million_parameters: int,
    step_s: float,
    max_iterations: int = 10**9,
    job_class: type[Timed] = Timed,
) -> JobSpec:
    job = job_class().set_hyperparameter(
        global_batch_size=job_class.BATCH_SIZE,
        million_parameters=million_parameters,
        notes=str(notes),
        step_s=step_s,
    )
    return job.term_condition(max_iterations=max_iterations).set_job_class("best_effort").spec()


@dataclass(frozen=True, slots=True)
class Step:
    """One that was followed by another."""

    began_s: float
    took_s: float  # to the beginning of the next
    num_workers: int


def steps(notes: Path) -> list[Step]:
    """The steps by iteration. A repeated one counts from its last start."""
    began: dict[int, dict[int, float]] = {}  # by iteration and process
    for file in notes.iterdir():
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # its writer was not killed within the line
                iteration, at_s = line.split()
                began.setdefault(int(iteration), {})[int(file.name)] = float(at_s)
    firsts = [(min(by_process.values()), len(by_process)) for _, by_process in sorted(began.items())]
    return [Step(at_s, next_s - at_s, num) for (at_s, num), (next_s, _) in pairwise(firsts)]


def median_s(some: Sequence[Step]) -> float:
    return statistics.median(step.took_s for step in some)


def mean_s(some: Sequence[Step]) -> float:
    return statistics.fmean(step.took_s for step in some)
