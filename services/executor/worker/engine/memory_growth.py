"""Tells a leak from a batch that is too large: the memory between steps grew, step by step, until it was full."""

import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch

_SETTLING_STEPS = 2  # in which optimizers make their state, and libraries their workspaces
_MOST_SAMPLES = 64
_FEWEST_SAMPLES = 5
_FEWEST_OF_EVEN_GROWTH = 3
_LEAST_PART = 0.2  # of the memory in the end; and of the growth, in each half of the steps
_LEAST_OF_MEAN = 0.5  # of the growth from one sample to the next, where the steps are few


class _Sample(NamedTuple):
    iteration: int
    num_bytes: int


class MemoryGrowth:
    """used_bytes: of this process now, which keeps nothing of a step but what users' code holds."""

    def __init__(self, used_bytes: Callable[[], int]) -> None:
        self._used_bytes = used_bytes
        self._settling: list[_Sample] = []
        self._samples: list[_Sample] = []
        self._num_steps, self._every = 0, 1  # steps between two samples

    @property
    def num_steps(self) -> int:
        """The steps that have fitted into the memory of this process."""
        return self._num_steps

    def step_ended(self, iteration: int) -> None:
        """iteration: steps done."""
        self._num_steps += 1
        if self._num_steps <= _SETTLING_STEPS:
            self._settling.append(_Sample(iteration, self._used_bytes()))
        if self._num_steps <= _SETTLING_STEPS or self._num_steps % self._every:
            return
        if len(self._samples) == _MOST_SAMPLES:
            self._samples, self._every = self._samples[::2], 2 * self._every
        self._samples.append(_Sample(iteration, self._used_bytes()))

    def in_words(self) -> str:
        """Say from when to when the memory grew; "" if it did not, or not in each half of the steps. Where the steps
        are few, it has to grow by about as much in each of them."""
        samples = self._samples if len(self._samples) >= _FEWEST_SAMPLES else self._settling + self._samples
        if len(samples) < _FEWEST_OF_EVEN_GROWTH:
            return ""
        first, last = samples[0], samples[-1]
        grown = last.num_bytes - first.num_bytes
        if grown < _LEAST_PART * last.num_bytes or not _grew_throughout([sample.num_bytes for sample in samples]):
            return ""
        steps = last.iteration - first.iteration
        return (
            f"the memory grew step by step, from {first.num_bytes / 1e6:,.0f} MB after iteration {first.iteration} to "
            f"{last.num_bytes / 1e6:,.0f} MB after iteration {last.iteration}, {grown / steps / 1e6:,.1f} MB a step"
        )


def _grew_throughout(num_bytes: list[int]) -> bool:
    first, half, last = num_bytes[0], num_bytes[len(num_bytes) // 2], num_bytes[-1]
    if len(num_bytes) >= _FEWEST_SAMPLES + _SETTLING_STEPS:
        return min(half - first, last - half) >= _LEAST_PART * (last - first)
    least = min(after - before for before, after in pairwise(num_bytes))
    return least >= _LEAST_OF_MEAN * (last - first) / (len(num_bytes) - 1)


def memory_growth_on(device: torch.device) -> MemoryGrowth:
    if device.type == "cuda":
        return MemoryGrowth(partial(torch.cuda.memory_allocated, device))
    return MemoryGrowth(_private_bytes if sys.platform == "linux" else lambda: 0)


def _private_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
