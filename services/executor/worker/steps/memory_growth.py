"""Tells a leak from a batch that is too large: the memory between steps grew, step by step, until it was full."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

_SETTLING_STEPS = 2  # in which optimizers make their state, and libraries their workspaces
_MOST_SAMPLES = 64
_FEWEST_SAMPLES = 5
_LEAST_PART = 0.2  # of the memory in the end; and of the growth, in each half of the steps


class _Sample(NamedTuple):
    iteration: int
    num_bytes: int


class MemoryGrowth:
    """used_bytes: of this process now, which keeps nothing of a step but what users' code holds."""

    def __init__(self, used_bytes: Callable[[], int]) -> None:
        self._used_bytes = used_bytes
        self._samples: list[_Sample] = []
        self._num_steps, self._every = 0, 1  # steps between two samples

    def step_ended(self, iteration: int) -> None:
        """iteration: steps done."""
        self._num_steps += 1
        if self._num_steps <= _SETTLING_STEPS or self._num_steps % self._every:
            return
        if len(self._samples) == _MOST_SAMPLES:
            self._samples, self._every = self._samples[::2], 2 * self._every
        self._samples.append(_Sample(iteration, self._used_bytes()))

    def in_words(self) -> str:
        """From when to when it grew; "" if it did not, or not in each half of the steps."""
        if len(self._samples) < _FEWEST_SAMPLES:
            return ""
        first, half, last = self._samples[0], self._samples[len(self._samples) // 2], self._samples[-1]
        grown = last.num_bytes - first.num_bytes
        halves = half.num_bytes - first.num_bytes, last.num_bytes - half.num_bytes
        if grown < _LEAST_PART * last.num_bytes or min(halves) < _LEAST_PART * grown:
            return ""
        steps = last.iteration - first.iteration
        return (
            f"the memory grew step by step, from {first.num_bytes / 1e6:,.0f} MB after iteration {first.iteration} to "
            f"{last.num_bytes / 1e6:,.0f} MB after iteration {last.iteration}, {grown / steps / 1e6:,.1f} MB a step"
        )


def memory_growth_on(device: torch.device) -> MemoryGrowth:
    if device.type == "cuda":
        return MemoryGrowth(partial(torch.cuda.memory_allocated, device))
    return MemoryGrowth(_private_bytes if sys.platform == "linux" else lambda: 0)


def _private_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
