"""The simulated cluster: the GPUs that each job holds, and the progress that it makes on them.

A job whose set of GPUs changes restarts: it stops for its resize cost, then trains at the rate of its curve. A job
that keeps its GPUs pays nothing. Asserted here: no two jobs hold one GPU, no job holds a GPU of a lost node, and none
holds GPUs of two types.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.timing.training_time import DONE_WITHIN_S, Progress, TrainingTime, true_rate
from elasticflow.simulator.trace.simulated_pool import ClusterShape
from elasticflow.simulator.workload.workload import TraceJob

NO_SPEEDS: Mapping[str, float] = MappingProxyType({})
NO_COSTS: Mapping[str, ResizeCost] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A job on one set of GPUs of one type, from its placement to its next one or to its end.

    starts_s: the end of the stop; the job may have left its GPUs earlier. iterations: done on these GPUs.
    """

    job_id: str
    generation: int
    gpu_type: str
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
    """A node was lost. to_s: None if it had not rejoined at the end of the simulation."""

    node_id: str
    from_s: float
    to_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """A job on its present GPUs."""

    job: TraceJob
    generation: int
    gpu_type: str
    gpus: tuple[GpuId, ...]
    placed_at_s: float
    progress: Progress

    @property
    def starts_s(self) -> float:
        return self.progress.starts_s

    def iteration_at(self, now_s: float) -> float:
        """Fractions included."""
        return min(self.progress.iteration_at(now_s), float(self.job.num_iterations))

    @property
    def done_at_s(self) -> float:
        """Infinity if the job makes no progress on these GPUs."""
        return max(self.starts_s, self.progress.reaches_s(self.job.num_iterations) - DONE_WITHIN_S)


class ClusterState:
    """The nodes, the jobs on their GPUs, and all past occupancies and outages."""

    def __init__(
        self,
        cluster: ClusterShape,
        resize_cost: ResizeCost,
        speeds: Mapping[str, float] = NO_SPEEDS,
        costs: Mapping[str, ResizeCost] = NO_COSTS,
    ) -> None:
        """speeds: true speed over the curve's by job, 1 by default. costs: of jobs that do not pay resize_cost."""
        self._cluster, self._speeds = cluster, speeds
        self._time = TrainingTime.of_cost(resize_cost)
        self._times = {job_id: TrainingTime.of_cost(cost) for job_id, cost in costs.items()}
        self._free = {gpu for node_id in cluster.node_ids for gpu in cluster.gpus_of(node_id)}
        self._lost: dict[str, int] = {}  # node: position among the outages
        self._iterations: dict[str, float] = {}  # of jobs without GPUs
        self._last_trained_s = -math.inf  # of jobs that have left their GPUs
        self.trainings: dict[str, Training] = {}  # by job
        self.occupancies: list[Occupancy] = []
        self.outages: list[Outage] = []  # in the order of their beginning

    def iteration(self, job_id: str, now_s: float) -> float:
        """Iterations done, fractions included."""
        training = self.trainings.get(job_id)
        return self._iterations.get(job_id, 0.0) if training is None else training.iteration_at(now_s)

    def is_present(self, training: Training) -> bool:
        """Whether the job still holds these GPUs."""
        return self.trainings.get(training.job.job_id) is training

    def last_trained_s(self, now_s: float) -> float:
        """The last instant at which a job made progress; a job that stops for a resize makes none."""
        trains = any(training.starts_s < now_s for training in self.trainings.values())
        return now_s if trains else self._last_trained_s

    def release(self, job_id: str, now_s: float) -> None:
        """The job leaves its GPUs, if it has any, and keeps its progress."""
        training = self.trainings.pop(job_id, None)
        if training is None:
            return
        iteration = training.iteration_at(now_s)
        self._iterations[job_id] = iteration
        self._free.update(training.gpus)
        if training.starts_s < now_s:
            self._last_trained_s = now_s
        self.occupancies.append(
            Occupancy(
                job_id=job_id,
                generation=training.generation,
                gpu_type=training.gpu_type,
                num_gpus=len(training.gpus),
                placed_at_s=training.placed_at_s,
                starts_s=training.starts_s,
                left_at_s=now_s,
                iterations=iteration - training.progress.iteration,
            )
        )

    def occupy(self, job: TraceJob, generation: int, gpus: tuple[GpuId, ...], now_s: float) -> Training:
        """The job takes these GPUs, which must be free, and restarts on them."""
        self._take(gpus, job.job_id)
        (gpu_type,) = {self._cluster.nodes[gpu.node_id].gpu_type for gpu in gpus}
        num_gpus, curve = len(gpus), job.curve_on(gpu_type)
        assert curve is not None, f"{job.job_id} does not run on {gpu_type}"
        progress = Progress(
            starts_s=self._times.get(job.job_id, self._time).starts_s(num_gpus, now_s),
            iteration=self._iterations.pop(job.job_id, 0.0),
            iterations_per_s=true_rate(curve.rate_by_num_gpus, num_gpus, self._speeds.get(job.job_id, 1.0)),
        )
        training = Training(
            job=job, generation=generation, gpu_type=gpu_type, gpus=gpus, placed_at_s=now_s, progress=progress
        )
        self.trainings[job.job_id] = training
        return training

    def finish(self, job_id: str, now_s: float) -> None:
        """The job ends and leaves its GPUs."""
        self.release(job_id, now_s)
        del self._iterations[job_id]

    def lose(self, node_id: str, now_s: float) -> None:
        """The node goes down; its jobs must have been released."""
        self._take(self._cluster.gpus_of(node_id), node_id)
        self._lost[node_id] = len(self.outages)
        self.outages.append(Outage(node_id=node_id, from_s=now_s, to_s=None))

    def rejoin(self, node_id: str, now_s: float) -> None:
        """The node rejoins."""
        self._free.update(self._cluster.gpus_of(node_id))
        position = self._lost.pop(node_id)
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
            assert gpu in self._free, f"{holder} takes {gpu}, which another job holds or whose node is lost"
            self._free.remove(gpu)
