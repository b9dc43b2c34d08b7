"""A job on one set of GPUs: while it holds them, and afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass

from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.simulator.timing.training_time import DONE_WITHIN_S, Progress
from elasticflow.simulator.workload.workload import TraceJob


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """A job on its present GPUs. before: on its previous ones, where it trains until stops_s, if it switches."""

    job: TraceJob
    generation: int
    gpus: tuple[GpuId, ...]
    num_gpus_by_type: Mapping[str, int]  # the job's own type first
    placed_at_s: float
    stops_s: float
    progress: Progress
    before: "Training | None" = None

    @property
    def is_mixed(self) -> bool:
        return len(self.num_gpus_by_type) > 1

    @property
    def starts_s(self) -> float:
        return self.progress.starts_s

    def at(self, now_s: float) -> "Training":
        """The generation whose workers hold the job's state at this instant."""
        return self if self.before is None or now_s >= self.starts_s else self.before

    def has_trained_by(self, now_s: float) -> bool:
        """Whether it makes, or made, progress since its placement."""
        return self.starts_s < now_s or (self.before is not None and self.placed_at_s < now_s)

    def iteration_at(self, now_s: float) -> float:
        """Fractions included."""
        if self.before is not None and now_s < self.starts_s:
            return min(self.before.iteration_at(now_s), self.progress.iteration)
        return min(self.progress.iteration_at(now_s), float(self.job.num_iterations))

    @property
    def done_at_s(self) -> float:
        """Infinity if the job makes no progress on these GPUs."""
        if self.before is not None and self.before.done_at_s <= self.stops_s:
            return self.before.done_at_s
        return max(self.starts_s, self.progress.reaches_s(self.job.num_iterations) - DONE_WITHIN_S)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A job on one set of GPUs, from its placement to its next one or to its end.

    num_gpus_by_type: the job's own type first. starts_s: the end of the stop; the job may have left its GPUs earlier.
    iterations: done since the placement; iterations_per_s: after the stop. stops_s, previous_iterations_per_s: until
    when, and how fast, it trained on its previous GPUs.
    """

    job_id: str
    generation: int
    num_gpus_by_type: Mapping[str, int]
    placed_at_s: float
    starts_s: float
    left_at_s: float
    iterations: float
    iterations_per_s: float
    stops_s: float
    previous_iterations_per_s: float = 0.0

    @property
    def num_gpus(self) -> int:
        return sum(self.num_gpus_by_type.values())

    @property
    def held_s(self) -> float:
        return self.left_at_s - self.placed_at_s

    @property
    def gpu_seconds(self) -> float:
        return self.num_gpus * self.held_s
