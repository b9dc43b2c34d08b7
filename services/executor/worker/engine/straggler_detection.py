"""Detects a worker that is persistently slower than its peers.

Compared are the times before each worker's first wait for its peers, for equally many samples, on GPUs of one type.
A slowdown of all workers does not count, nor one that moves from worker to worker, as on a busy machine.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

FACTOR = 1.5  # times the median of the peers, and
DEVIATIONS = 5.0  # standard deviations above it, estimated by the median deviation
STEPS, MIN_DURATION_S = 10, 10.0  # in a row, and for at least this long
REPORT_INTERVAL_S = 60.0
_SIGMA = 1.4826  # standard deviations in a median absolute deviation, of a normal distribution


@dataclass(frozen=True, slots=True)
class Straggler:
    """slowdown: its time divided by the median of its peers'."""

    rank: int
    slowdown: float


@dataclass(slots=True)
class _SlowSteps:
    """Consecutive slow steps of one worker."""

    since_s: float
    slowdowns: list[float] = field(default_factory=list[float])


class StragglerDetector:
    """The straggler detector of one generation. gpu_types_by_rank: empty if all workers have GPUs of one type.

    A worker is a straggler if its time exceeds 1.5 times its peers' median and the median plus five deviations, in ten
    steps in a row.
    """

    def __init__(self, gpu_types_by_rank: Sequence[str] = ()) -> None:
        self._gpu_types_by_rank = gpu_types_by_rank
        self._slow_steps: dict[int, _SlowSteps] = {}
        self._reported_at_s: dict[int, float] = {}

    def detect(self, compute_s: Sequence[float], now_s: float) -> Straggler | None:
        """Return the straggler after a step, or None. compute_s: by rank."""
        for rank, mine_s in enumerate(compute_s):
            slowdown = _slowdown(mine_s, self._of_peers(rank, compute_s))
            if slowdown is None:
                self._slow_steps.pop(rank, None)
                continue
            slow = self._slow_steps.setdefault(rank, _SlowSteps(now_s))
            slow.slowdowns = [*slow.slowdowns[1 - STEPS :], slowdown]
            is_persistent = len(slow.slowdowns) == STEPS and now_s - slow.since_s >= MIN_DURATION_S
            if is_persistent and now_s - self._reported_at_s.get(rank, -REPORT_INTERVAL_S) >= REPORT_INTERVAL_S:
                self._reported_at_s[rank] = now_s
                return Straggler(rank, statistics.median(slow.slowdowns))
        return None

    def _of_peers(self, rank: int, compute_s: Sequence[float]) -> list[float]:
        """The times of the other workers on GPUs of the same type."""
        types = self._gpu_types_by_rank or ("",) * len(compute_s)
        return [peer_s for peer, peer_s in enumerate(compute_s) if peer != rank and types[peer] == types[rank]]


def _slowdown(mine_s: float, others_s: Sequence[float]) -> float | None:
    """The ratio of a worker's time to the others' median, or None if the time is within the expected variation."""
    if not others_s or (median_s := statistics.median(others_s)) <= 0:
        return None
    deviation_s = _SIGMA * statistics.median(abs(other_s - median_s) for other_s in others_s)
    if mine_s < max(FACTOR * median_s, median_s + DEVIATIONS * deviation_s):
        return None
    return mine_s / median_s
