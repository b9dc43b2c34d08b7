"""What is true: which GPUs each job holds, and how far it is.

A job whose set of GPUs changes stands still for the resize cost of its new number of GPUs, then progresses at
exactly the rate of its curve; a job that keeps its GPUs pays nothing. Asserted here: no GPU is held twice, or on a
node that is down.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from shared.messages.cluster import GpuId
from shared.scheduling.resize_cost import ResizeCost
from simulator.trace_driven.pool import ClusterShape
from simulator.workload.jobs import TraceJob

# A job with less than this left is done: after months, floats of seconds resolve little more. It is forgiven once
# in a job's life, at its end, not at each plan.
DONE_WITHIN_S = 1e-6
NO_SPEEDS: Mapping[str, float] = MappingProxyType({})
NO_COSTS: Mapping[str, ResizeCost] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Stay:
    """A job on one set of GPUs, from its placement to the next or to its end.

    starts_s: the end of the stop, from which it trains; it may have left earlier. iterations: done meanwhile.
    """

    job_id: str
    generation: int
    num_gpus: int
    placed_at_s: float
    starts_s: float
    left_at_s: float
    iterations: float

    @property
    def gpu_seconds(self) -> float:
        return self.num_gpus * (self.left_at_s - self.placed_at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node was down. to_s: None if it still was at the end."""

    node_id: str
    from_s: float
    to_s: float | None


@dataclass(slots=True, kw_only=True, eq=False)
class Training:
    """A job's present stay. iteration: reached when it starts, fractions included."""

    job: TraceJob
    generation: int
    gpus: tuple[GpuId, ...]
    placed_at_s: float
    starts_s: float
    iteration: float
    speed: float = 1.0  # what is true over what its curve says
    rate: float = field(init=False)  # iterations/s

    def __post_init__(self) -> None:
        self.rate = self.speed * self.job.curve.throughput(len(self.gpus))

    def iteration_at(self, now_s: float) -> float:
        if now_s <= self.starts_s:
            return self.iteration
        return min(self.iteration + self.rate * (now_s - self.starts_s), float(self.job.num_iterations))

    @property
    def done_at_s(self) -> float:
        """Infinity where the job makes no progress on so many GPUs."""
        if self.rate <= 0:
            return float("inf")
        left = self.job.num_iterations - self.iteration
        return max(self.starts_s, self.starts_s + left / self.rate - DONE_WITHIN_S)


class World:
    """The cluster, the jobs on it, and what has been."""

    def __init__(
        self,
        cluster: ClusterShape,
        resize_cost: ResizeCost,
        speeds: Mapping[str, float] = NO_SPEEDS,
        costs: Mapping[str, ResizeCost] = NO_COSTS,
    ) -> None:
        """speeds: by job, what is true over what its curve says; 1 where nothing else is said. costs: by job, where
        one pays another than resize_cost."""
        self._cluster, self._resize_cost, self._speeds, self._costs = cluster, resize_cost, speeds, costs
        self._free = {gpu for node_id in cluster.node_ids for gpu in cluster.gpus_of(node_id)}
        self._down: dict[str, int] = {}  # node: position among the outages
        self._iterations: dict[str, float] = {}  # of jobs that wait for GPUs
        self._last_trained_s = -math.inf  # whoever trained and has left
        self.trainings: dict[str, Training] = {}  # by job
        self.stays: list[Stay] = []
        self.outages: list[Outage] = []  # in the order of their beginning

    def iteration(self, job_id: str, now_s: float) -> float:
        """How far a job is, fractions included."""
        training = self.trainings.get(job_id)
        return self._iterations.get(job_id, 0.0) if training is None else training.iteration_at(now_s)

    def is_present(self, training: Training) -> bool:
        """The job has not moved on."""
        return self.trainings.get(training.job.job_id) is training

    def last_trained_s(self, now_s: float) -> float:
        """Until when somebody made progress: no stop is one."""
        trains = any(training.starts_s < now_s for training in self.trainings.values())
        return now_s if trains else self._last_trained_s

    def release(self, job_id: str, now_s: float) -> None:
        """The job leaves its GPUs, if it has any; nothing of its progress is lost."""
        training = self.trainings.pop(job_id, None)
        if training is None:
            return
        iteration = training.iteration_at(now_s)
        self._iterations[job_id] = iteration
        self._free.update(training.gpus)
        if training.starts_s < now_s:
            self._last_trained_s = now_s
        self.stays.append(
            Stay(
                job_id=job_id,
                generation=training.generation,
                num_gpus=len(training.gpus),
                placed_at_s=training.placed_at_s,
                starts_s=training.starts_s,
                left_at_s=now_s,
                iterations=iteration - training.iteration,
            )
        )

    def occupy(self, job: TraceJob, generation: int, gpus: tuple[GpuId, ...], now_s: float) -> Training:
        """The job gets these GPUs, none of which anybody holds."""
        self._take(gpus, job.job_id)
        training = Training(
            job=job,
            generation=generation,
            gpus=gpus,
            placed_at_s=now_s,
            starts_s=now_s + self._costs.get(job.job_id, self._resize_cost).seconds(len(gpus)),
            iteration=self._iterations.pop(job.job_id, 0.0),
            speed=self._speeds.get(job.job_id, 1.0),
        )
        self.trainings[job.job_id] = training
        return training

    def finish(self, job_id: str, now_s: float) -> None:
        """The job ends here."""
        self.release(job_id, now_s)
        del self._iterations[job_id]

    def lose(self, node_id: str, now_s: float) -> None:
        """The node is down; whoever trained there has been released."""
        self._take(self._cluster.gpus_of(node_id), node_id)
        self._down[node_id] = len(self.outages)
        self.outages.append(Outage(node_id=node_id, from_s=now_s, to_s=None))

    def regain(self, node_id: str, now_s: float) -> None:
        """The node is back."""
        self._free.update(self._cluster.gpus_of(node_id))
        position = self._down.pop(node_id)
        self.outages[position] = replace(self.outages[position], to_s=now_s)

    def jobs_on(self, node_id: str) -> tuple[str, ...]:
        """Jobs with a GPU of this node, by id."""
        return tuple(
            sorted(
                job_id
                for job_id, training in self.trainings.items()
                if any(gpu.node_id == node_id for gpu in training.gpus)
            )
        )

    def _take(self, gpus: Iterable[GpuId], holder: str) -> None:
        for gpu in gpus:
            assert gpu in self._free, f"{holder} gets {gpu}, which is held by another or down"
            self._free.remove(gpu)
