"""A result over time: step functions of the jobs' occupancies, and their means over intervals.

Axes: S = occupancies, B = edges between intervals of time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticflow.simulator.trace.result import Result, rate_alone
from elasticflow.simulator.trace.training import Occupancy

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A sum of pieces, each constant from one instant to another; shapes (S,)."""

    from_s_S: FloatArray
    to_s_S: FloatArray
    value_S: FloatArray

    @staticmethod
    def of(pieces: Iterable[tuple[float, float, float]]) -> "Pieces":
        """pieces: (from_s, to_s, value)."""
        table = np.array(list(pieces), dtype=np.float64).reshape(-1, 3)
        return Pieces(from_s_S=table[:, 0], to_s_S=table[:, 1], value_S=table[:, 2])

    def means(self, edges_s_B: FloatArray) -> FloatArray:
        """The mean of the sum between neighbouring edges, shape (B - 1,)."""
        at_s = np.concatenate((self.from_s_S, self.to_s_S))
        order = np.argsort(at_s, kind="stable")
        at_s, steps = at_s[order], np.concatenate((self.value_S, -self.value_S))[order]
        if not len(at_s):
            return np.zeros(len(edges_s_B) - 1)
        until_s = np.concatenate(([0.0], np.cumsum(np.cumsum(steps)[:-1] * np.diff(at_s))))
        return np.diff(np.interp(edges_s_B, at_s, until_s)) / np.diff(edges_s_B)


def held_gpus(result: Result, job_ids: Iterable[str] | None = None) -> Pieces:
    """GPUs of these jobs, or of all."""
    wanted = None if job_ids is None else set(job_ids)
    return Pieces.of(
        (occupancy.placed_at_s, occupancy.left_at_s, occupancy.num_gpus)
        for fate in result.fates
        if wanted is None or fate.job.job_id in wanted
        for occupancy in fate.occupancies
    )


def efficiency(result: Result) -> Pieces:
    """Equation 8 (ElasticFlow, section 6.1): throughput of all GPUs relative to that of one GPU, over their number."""
    return Pieces.of(
        (from_s, to_s, iterations_per_s / rate_alone(fate.job, occupancy) / result.cluster.num_gpus)
        for fate in result.fates
        for occupancy in fate.occupancies
        for from_s, to_s, iterations_per_s in _trained(occupancy)
        if to_s > from_s
    )


def _trained(occupancy: Occupancy) -> Iterator[tuple[float, float, float]]:
    """From when to when, and how fast: until the switch, and after it."""
    stops_s = min(occupancy.stops_s, occupancy.left_at_s)
    yield occupancy.placed_at_s, stops_s, occupancy.previous_iterations_per_s
    yield occupancy.starts_s, occupancy.left_at_s, occupancy.iterations_per_s
