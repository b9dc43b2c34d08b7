"""What a walk through a job's objects finds: each habit that is no plain state has a name, and only if it changes."""

import itertools
from collections.abc import Callable
from random import Random  # noqa: TID251 - as user code has it
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.loop.repeatability_check import values_by_name

kept: list[Any] = []


def counting() -> Callable[[], int]:
    count = 0

    def following() -> int:
        nonlocal count
        count += 1
        return count

    return following


def remember(value: float, seen: list[float] = []) -> None:  # noqa: B006 - the habit that is to be found
    seen.append(value)


class Job:
    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.numpy, self.legacy, self.python = np.random.default_rng(0), np.random.RandomState(0), Random(0)
        self.array, self.tensors = np.zeros(2), [torch.zeros(1)]
        self.numbers, self.following = itertools.count(), counting()
        self.remember = remember
        self.model = nn.Sequential(nn.Dropout(0.1))
        self.iteration = 0


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda job: torch.rand(1, generator=job.generator), {"self.generator"}),
        (lambda job: job.numpy.random(), {"self.numpy"}),
        (lambda job: job.legacy.rand(), {"self.legacy"}),
        (lambda job: job.python.random(), {"self.python"}),
        (lambda job: job.array.__setitem__(0, 1.0), {"self.array"}),
        (lambda job: job.tensors.append(torch.ones(1)), {"self.tensors's length", "self.tensors[1]"}),
        (lambda job: job.tensors[0].add_(1), {"self.tensors[0]"}),
        (lambda job: next(job.numbers), {"self.numbers"}),
        (lambda job: job.following(), {"self.following's variable count"}),
        (lambda job: job.remember(1.0), {"self.remember's default 0's length", "self.remember's default 0[0]"}),
        (lambda job: kept.append(torch.ones(1)), {"kept's length", "kept[0]"}),
        (lambda job: setattr(job.model[0], "p", 0.5), {"model.0.p"}),
        (lambda job: setattr(job, "iteration", 1), set()),
        (lambda job: None, set()),
    ],
)
def test_a_change_has_a_name(change: Callable[[Any], Any], names: set[str]) -> None:
    job = Job()
    before = values_by_name(job, job.model)
    change(job)
    after = values_by_name(job, job.model)
    kept.clear()
    assert {name for name in after if after[name] != before.get(name)} == names
