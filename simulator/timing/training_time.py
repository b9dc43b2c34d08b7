"""The model of training time: what a change of GPUs costs, and progress at a constant rate.

The virtual cluster, the trace-driven simulation and the counterfactual replay all use it. Its parameters are given as a
resize cost (`overhead` reads one from `benchmarks/results/engine.json`) or fitted to a recorded ledger. Pure: no clock.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from elasticflow.shared.messages.events import GenerationStarted, PlacementDecided, PlanDecided
from elasticflow.shared.messages.gpu_limits import largest_size_up_to
from elasticflow.shared.scheduling.jobs.resize_cost import FREE, ResizeCost
from elasticflow.shared.state.policy import LedgerMessage

# A job with less than this left is done: after months, floats of seconds resolve little more. It is forgiven once
# in a job's life, at its end, not at each plan.
DONE_WITHIN_S = 1e-6
_STEP_TOLERANCE = 1e-6  # of a step, so that the last step has ended at the instant computed for it


def true_rate(iterations_per_s: Mapping[int, float], num_gpus: int, speed: float = 1.0) -> float:
    """Iterations per second on `num_gpus` GPUs, those of the next smaller power of two; 0 where none is known.

    iterations_per_s: by number of GPUs, as the curve says. speed: the true speed over the curve's.
    """
    return speed * iterations_per_s.get(largest_size_up_to(num_gpus), 0.0)


def step_s(iterations_per_s: float) -> float:
    """Seconds of a step: of the first one on new GPUs, and at most until the next step boundary."""
    return 1 / iterations_per_s


@dataclass(frozen=True, slots=True)
class Progress:
    """A job that trains at one rate. iteration: reached at `starts_s`, fractions included."""

    starts_s: float
    iteration: float
    iterations_per_s: float

    def done(self, now_s: float) -> float:
        """Iterations since the start, fractions included; 0 before it."""
        return self.iterations_per_s * max(now_s - self.starts_s, 0.0)

    def whole_steps(self, now_s: float) -> int:
        """Steps that have ended since the start."""
        return int(self.done(now_s) + _STEP_TOLERANCE)

    def iteration_at(self, now_s: float) -> float:
        """Not capped: the caller knows when the job ends."""
        return self.iteration + self.done(now_s)

    def reaches_s(self, iteration: float) -> float:
        """The instant of this iteration, before `starts_s` if it lies behind; infinity without progress."""
        if self.iterations_per_s <= 0:
            return math.inf
        return self.starts_s + (iteration - self.iteration) / self.iterations_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTime:
    """How long a change of GPUs takes.

    restart: from the placement to the first step of a job that stops first, by its new number of GPUs.
    prepare: until joining workers are ready; the staying workers train meanwhile.
    switch_s: from the step boundary at which the workers switch to the first step on the new GPUs.
    """

    restart: ResizeCost = FREE
    prepare: ResizeCost = FREE
    switch_s: float = 0.0

    @staticmethod
    def of_cost(cost: ResizeCost, switch_s: float = 0.0) -> "TrainingTime":
        """Workers that join take as long as workers that restart."""
        return TrainingTime(restart=cost, prepare=cost, switch_s=switch_s)

    def starts_s(self, num_gpus: int, placed_at_s: float) -> float:
        """First step of a job that does not train meanwhile."""
        return placed_at_s + self.restart.seconds(num_gpus)

    def switches_s(self, num_gpus: int, placed_at_s: float) -> float:
        """First step on the new GPUs of a job that trains on the old ones meanwhile."""
        return placed_at_s + self.prepare.seconds(num_gpus) + self.switch_s


def fitted_to(messages: Iterable[LedgerMessage]) -> TrainingTime | None:
    """Every start takes as long as those of this record, in the median; None if it has no start.

    A start lasts from a placement to the first iteration on it. A switch of workers is recorded as a start, too.
    """
    placed_at_s: dict[tuple[str, int], float] = {}
    starts_s: list[float] = []
    for message in messages:
        match message:
            case PlanDecided(events=events):
                for decided in events:
                    if isinstance(decided, PlacementDecided):
                        placed_at_s |= {(p.job_id, p.generation): decided.at_s for p in decided.placements}
            case GenerationStarted(job_id=job_id, generation=generation, at_s=at_s):
                if (job_id, generation) in placed_at_s:
                    starts_s.append(max(at_s - placed_at_s.pop((job_id, generation)), 0.0))
            case _:
                pass
    return TrainingTime.of_cost(ResizeCost.flat(median(starts_s))) if starts_s else None
