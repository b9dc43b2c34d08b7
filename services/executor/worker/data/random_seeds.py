"""The seeds of all random numbers: a function of the job's seed, the phase, the iteration and the virtual node."""

import random  # noqa: TID251 - users' code may draw from it, so it is seeded like the others
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class SeedPhase(IntEnum):
    """Purpose of random numbers. Later synchronizations of a step add 1, 2, ... to AFTER_SYNCHRONIZATION."""

    INITIALIZE = 0
    LOAD = 1
    TRAIN = 2
    EVALUATE = 3
    READ = 4  # streamed data: windows and partitions, not parts of a batch
    AFTER_SYNCHRONIZATION = 5


ALL_VIRTUAL_NODES = -1  # in place of a virtual node: all of them draw the same


def seed_of(
    job_seed: int,
    phase: int,
    *,
    iteration: int = 0,
    virtual_node: int = ALL_VIRTUAL_NODES,
    micro_batch: int = 0,
) -> int:
    """32 bits for the generators, independent for different arguments. All arguments are below 2^64."""
    key = (job_seed, phase, iteration, virtual_node + 1, micro_batch)
    words = [word for number in key for word in (number & 0xFFFFFFFF, number >> 32)]  # always as many
    return int(np.random.SeedSequence(words).generate_state(1, np.uint32)[0])


def seed_generators(seed: int) -> None:
    """Seed all generators that users draw from. torch.manual_seed covers more devices, but is 100 times slower."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def keep_generators() -> Iterator[None]:
    """Restore all generators that users draw from, after the block, to their states before it."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)
