"""Tasks of a padding load: pi by the Monte-Carlo method, one task for each seed. `make demo` runs them on idle GPUs."""

from collections.abc import Sequence

import numpy as np

_NUM_BATCHES, _BATCH_SIZE = 50, 100_000  # of random points: about 25 ms of a core


def points_in_circle(seed: int) -> int:
    """How many random points of the unit square are at most 1 away from its corner."""
    generator, count = np.random.default_rng(seed), 0
    for _ in range(_NUM_BATCHES):
        x, y = generator.random((2, _BATCH_SIZE))
        count += int(np.count_nonzero(x * x + y * y <= 1.0))
    return count


def estimate(counts: Sequence[int]) -> float:
    """Pi, from the results of one or more tasks."""
    return 4.0 * sum(counts) / (len(counts) * _NUM_BATCHES * _BATCH_SIZE)
