"""The simulated cluster: the GPUs that each job holds, and the progress that it makes on them.

A job whose set of GPUs changes restarts: it stops for its resize cost, then trains at the rate of its curve, or on
GPUs of several types as `timing.mixed_types` says. With the times of each kind of change it switches instead: it trains
on its previous GPUs until its workers are ready. A job that keeps its GPUs pays nothing. Asserted here: no two jobs
hold one GPU, no job holds a GPU of a lost node, and the GPUs of each replica are on one node.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from elasticflow.shared.messages.gpus import GpuId, are_whole_gangs
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.timing.training_time import (
    DONE_WITHIN_S,
    Places,
    RatedProgress,
    TrainingTime,
    mix_throughput,
    throughput_in_mix,
    true_rate,
)
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob

# --- A job on one set of GPUs: while it holds them, and afterwards -------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """A job on its present GPUs. before: on its previous ones, where it trains until stops_s, if it switches."""

    job: TraceJob
    generation: int
    gpus: tuple[GpuId, ...]
    num_gpus_by_type: Mapping[str, int]  # the job's own type first
    placed_at_s: float
    stops_s: float
    progress: RatedProgress
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


# --- cluster state -------------------------------------------------------------------------------------

NO_SPEEDS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingModel:
    """What changes of GPUs cost, and how fast jobs are on GPUs of several types or on several nodes.

    costs: of jobs that do not pay resize_cost. changes: times of each kind of change, so that jobs switch without a
    stop; None: each change stops its job for the whole cost. mix_efficiency: of GPUs of several types in one job; None:
    jobs have no step times, so that no policy mixes types. places: the effect of the place on speeds; None: all places
    are equal.
    """

    resize_cost: ResizeCost
    costs: Mapping[str, ResizeCost] = field(default_factory=dict[str, ResizeCost])
    changes: TrainingTime | None = None
    mix_efficiency: float | None = None
    places: Places | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node was lost. to_s: None if it had not rejoined at the end of the simulation."""

    node_id: str
    from_s: float
    to_s: float | None


class ClusterState:
    """The nodes, the jobs on their GPUs, and all past occupancies and outages."""

    def __init__(self, cluster: ClusterShape, training: TrainingModel, speeds: Mapping[str, float] = NO_SPEEDS) -> None:
        """speeds: true speed over the curve's by job, 1 by default."""
        self._cluster, self._speeds = cluster, speeds
        self._mix_efficiency, self._places = training.mix_efficiency, training.places
        self._time = training.changes or TrainingTime.of_cost(training.resize_cost)
        self._times = {job_id: TrainingTime.of_cost(cost) for job_id, cost in training.costs.items()}
        self._free = {gpu for node_id in cluster.node_ids for gpu in cluster.gpus_of(node_id)}
        self._lost: dict[str, int] = {}  # node: position among the outages
        self._iterations: dict[str, float] = {}  # of jobs without GPUs
        self._left: dict[GpuId, tuple[str, float]] = {}  # the last job, and when its workers are gone
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
        trains = any(training.has_trained_by(now_s) for training in self.trainings.values())
        return now_s if trains else self._last_trained_s

    def release(self, job_id: str, now_s: float) -> Training | None:
        """The job leaves its GPUs, if it has any, and keeps its progress. Returns what can switch to its next GPUs."""
        training = self.trainings.pop(job_id, None)
        if training is None:
            return None
        iteration = training.iteration_at(now_s)
        self._iterations[job_id] = iteration
        self._free.update(training.gpus)
        gone_s = now_s + self._time.suspend.seconds(len(training.gpus))
        self._left |= dict.fromkeys(training.gpus, (job_id, gone_s))
        if training.has_trained_by(now_s):
            self._last_trained_s = now_s
        self.occupancies.append(
            Occupancy(
                job_id=job_id,
                generation=training.generation,
                num_gpus_by_type=training.num_gpus_by_type,
                placed_at_s=training.placed_at_s,
                starts_s=training.starts_s,
                left_at_s=now_s,
                iterations=iteration - training.iteration_at(training.placed_at_s),
                iterations_per_s=training.progress.iterations_per_s,
                stops_s=training.stops_s,
                previous_iterations_per_s=training.before.progress.iterations_per_s if training.before else 0.0,
            )
        )
        running = training.at(now_s)
        if running.starts_s > now_s:
            return None
        return replace(running, before=None, progress=replace(running.progress, starts_s=now_s, iteration=iteration))

    def occupy(
        self,
        job: TraceJob,
        generation: int,
        gpus: tuple[GpuId, ...],
        now_s: float,
        virtual_nodes_by_rank: tuple[int, ...] = (),
        before: Training | None = None,
    ) -> Training:
        """The job takes these GPUs, which must be free. Its own type is that of the first one.

        virtual_nodes_by_rank: empty if divided evenly. A GPU without any does not make the job faster.
        before: the job switches from there; None: it restarts. Workers of other jobs leave the GPUs first.
        """
        self._take(gpus, job.job_id)
        assert are_whole_gangs([gpu.node_id for gpu in gpus], job.gpus_per_replica), f"{job.job_id} on {gpus}"
        used = self._used_by_type(job, gpus, virtual_nodes_by_rank or (1,) * len(gpus))
        iteration = self._iterations.pop(job.job_id, 0.0)
        stops_s, starts_s = self._stop(job.job_id, gpus, now_s, iteration, before)
        progress = RatedProgress(
            starts_s=starts_s,
            iteration=iteration if before is None else before.iteration_at(stops_s),
            iterations_per_s=self._rate(job, used) * self._place_factor(gpus, used),
        )
        training = Training(
            job=job,
            generation=generation,
            gpus=gpus,
            num_gpus_by_type=self._by_type(gpus),
            placed_at_s=now_s,
            stops_s=stops_s,
            progress=progress,
            before=before,
        )
        self.trainings[job.job_id] = training
        return training

    def _stop(
        self, job_id: str, gpus: tuple[GpuId, ...], now_s: float, iteration: float, before: Training | None
    ) -> tuple[float, float]:
        """The start and the end of the time in which the job does not train."""
        left = (self._left[gpu] for gpu in gpus if gpu in self._left)
        begins_s = max((now_s, *(gone_s for last_job_id, gone_s in left if last_job_id != job_id)))
        if before is None:
            time = self._times.get(job_id, self._time)
            return now_s, begins_s + time.start_s(len(gpus), is_first=not iteration)
        switch = self._time.switch(joins=not set(gpus) <= set(before.gpus))
        stops_s = begins_s + switch.prepare.seconds(len(gpus))
        self._left |= dict.fromkeys(set(before.gpus).difference(gpus), (job_id, stops_s))
        return stops_s, stops_s + switch.stop.seconds(len(gpus))

    def _by_type(self, gpus: Iterable[GpuId]) -> Counter[str]:
        return Counter(self._cluster.nodes[gpu.node_id].gpu_type for gpu in gpus)

    def _used_by_type(self, job: TraceJob, gpus: tuple[GpuId, ...], virtual_nodes: tuple[int, ...]) -> Counter[str]:
        """The GPUs that compute, of types with a curve within the job's range; its own ones where there are no such."""
        computing = (gpu for gpu, count in zip(gpus, virtual_nodes, strict=True) if count)
        used = {name: num for name, num in self._by_type(computing).items() if job.curve_on(name) is not None}
        own_type = next(iter(self._by_type(gpus[:1])))
        return Counter(used or {own_type: self._by_type(gpus)[own_type]})

    def _rate(self, job: TraceJob, num_gpus_by_type: Mapping[str, int]) -> float:
        """Iterations per second on these GPUs, the next smaller level of one type. No bound knows more on each type."""
        speed, curves = self._speeds.get(job.job_id, 1.0), {name: job.curve_on(name) for name in num_gpus_by_type}
        if len(curves) > 1:
            alone = [throughput_in_mix(curve, num_gpus_by_type[name]) for name, curve in curves.items() if curve]
            return speed * mix_throughput(alone, self._mix_efficiency)
        ((gpu_type, curve),) = curves.items()
        assert curve is not None, f"{job.job_id} does not run on {gpu_type}"
        return true_rate(curve.rate_by_num_gpus, num_gpus_by_type[gpu_type], speed)

    def _place_factor(self, gpus: tuple[GpuId, ...], used: Mapping[str, int]) -> float:
        """1 on GPUs of several types, which are on several nodes in any case: `mix_efficiency` has it."""
        return 1.0 if self._places is None or len(used) > 1 else self._places.factor(gpus)

    def finish(self, job_id: str, now_s: float) -> None:
        """The job ends and leaves its GPUs at once."""
        gpus = self.trainings[job_id].gpus
        self.release(job_id, now_s)
        self._left |= dict.fromkeys(gpus, (job_id, now_s))
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

    def jobs_on(self, node_id: str, now_s: float) -> tuple[str, ...]:
        """Jobs with a GPU of this node, or with workers there that have not yet switched to other ones; by id."""
        return tuple(
            sorted(
                job_id
                for job_id, training in self.trainings.items()
                if any(gpu.node_id == node_id for gpu in (*training.gpus, *training.at(now_s).gpus))
            )
        )

    def _take(self, gpus: Iterable[GpuId], holder: str) -> None:
        for gpu in gpus:
            assert gpu in self._free, f"{holder} takes {gpu}, which another job holds or whose node is lost"
            self._free.remove(gpu)
