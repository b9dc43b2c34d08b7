"""Throughputs by GPU type: iterations per second of each model on 1, 2, 4, ... GPUs of each type."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.scheduling.compiled_loops import Floats, Integers
from elasticflow.simulator.timing.training_time import mix_throughput
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import TypedPool, throughputs_by_type

GAVEL_TYPES = ("V100", "P100", "K80")  # the fastest first


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputTable:
    """source: its name in errors. rates: by model, by GPU type, by number of GPUs; iterations/s."""

    source: str
    rates: Mapping[str, Mapping[str, Mapping[int, float]]]

    @property
    def models(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(self.rates))

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types on which some model runs, sorted."""
        return tuple(sorted({name for by_type in self.rates.values() for name in by_type}))

    def throughputs(self, model: str, gpu_type: str) -> Mapping[int, float]:
        """Iterations/s by number of GPUs; empty if the model does not run there.

        Raises BadSettings for a model or a type that the table does not know.
        """
        if model not in self.rates:
            raise BadSettings((f"{self.source} has no model {model!r}; it has {', '.join(self.models)}",))
        if gpu_type not in self.gpu_types:
            raise BadSettings((f"{self.source} has no GPU type {gpu_type!r}; it has {', '.join(self.gpu_types)}",))
        return self.rates[model].get(gpu_type, {})

    def throughput_per_gpu(self, model: str, gpu_type: str) -> float:
        """Iterations/s of one GPU, at the smallest number on which the model runs; 0 if it runs on none."""
        rates = self.throughputs(model, gpu_type)
        return rates[min(rates)] / min(rates) if rates else 0.0


def gavel_throughputs() -> ThroughputTable:
    """The bundled excerpt of Gavel's published measurements. A model here is a model there at one batch size."""
    tables = read_throughputs(throughputs_by_type(), GAVEL_TYPES)
    rates = {
        f"{model}_batch{batch_size}": {
            gpu_type: curve.rate_by_num_gpus for gpu_type, curve in tables.curve_by_type(model, batch_size).items()
        }
        for model in tables.models
        for batch_size in tables.batch_sizes(model)
    }
    return ThroughputTable(source=tables.source, rates=rates)


# --- The sets of GPUs that a job may hold at once, and its throughput on each --------------------------
# A configuration counts GPUs of each type. Without mixing it has GPUs of one type only. A configuration that needs no
# fewer GPUs of any type than a faster one is left out: no policy and no placement would choose it. Axes: I = GPU
# types of the pool; C = configurations of one job.


@dataclass(frozen=True, slots=True, eq=False)
class Configurations:
    """throughput_C: iterations/s. equal_throughput: of one GPU's time that is spread evenly over the pool."""

    num_gpus_CI: NDArray[np.int64]
    throughput_C: Floats
    equal_throughput: float

    @property
    def normalized_C(self) -> Floats:
        """Throughput in equal shares: 1 is worth as much to this job as one average GPU of the pool."""
        return self.throughput_C / self.equal_throughput


def configurations(
    table: ThroughputTable, pool: TypedPool, model: str, levels: Sequence[int], mix_efficiency: float | None
) -> Configurations:
    """What a job of this model may hold, if it takes one of the numbers `levels` of each type.

    mix_efficiency: see `mix_throughput`; None keeps each configuration on one type.
    Raises BadSettings if the table lacks the model or a type, or if the model runs on no such GPUs.
    """
    rates_I = [
        {0: 0.0} | {num: rate for num, rate in table.throughputs(model, name).items() if num in levels and num <= most}
        for name, most in zip(pool.gpu_types, pool.num_gpus, strict=True)
    ]
    numbers = [
        numbers
        for numbers in product(*rates_I)
        if np.count_nonzero(numbers) == 1 or (any(numbers) and mix_efficiency is not None)
    ]
    if not numbers:
        raise BadSettings((f"model {model!r} does not run on {_either(levels)} GPUs of one type of the pool {pool}",))
    throughput_C = np.array(
        [mix_throughput([rates_I[i][num] for i, num in enumerate(mix) if num], mix_efficiency) for mix in numbers]
    )
    kept_C = _undominated(np.array(numbers), throughput_C)
    per_gpu_I = np.array([table.throughput_per_gpu(model, name) for name in pool.gpu_types])
    return Configurations(
        np.array(numbers)[kept_C], throughput_C[kept_C], float(per_gpu_I @ pool.num_gpus_I) / pool.total_gpus
    )


def _undominated(num_gpus_CI: NDArray[np.int64], throughput_C: Floats) -> NDArray[np.bool_]:
    """Whether each configuration is faster than all others that need at most its GPUs."""
    needs_more_CC = (num_gpus_CI[None, :, :] - num_gpus_CI[:, None, :]).max(axis=2) > 0
    other_CC = ~needs_more_CC & ~np.eye(len(throughput_C), dtype=np.bool_)
    fastest_C = np.where(other_CC, throughput_C[None, :], 0.0).max(axis=1)
    return throughput_C > fastest_C


def _either(levels: Sequence[int]) -> str:
    return " or ".join(map(str, levels))


# --- job arrivals --------------------------------------------------------------------------------------
# Jobs for a pool of several GPU types, from a seed: Poisson arrivals, models of a table, sizes in GPU time.

SIZE_CLASSES = ("small", "medium", "large")  # thirds of the range of sizes, on a logarithmic scale


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedJob:
    """levels: numbers of GPUs that it may take of one type. deadline_s: infinite if it has none."""

    job_id: str
    model: str
    num_iterations: float
    arrived_at_s: float
    levels: tuple[int, ...]
    size_class: str = SIZE_CLASSES[0]
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The parameters of generated jobs.

    gpu_minutes: range of the time on one GPU of `reference_type`, uniform on a logarithmic scale.
    level_weights: weight of each set of numbers of GPUs that a job may take of one type.
    deadline_factors: range of the time until the deadline, over the time on one GPU of `reference_type`.
    """

    num_jobs: int
    jobs_per_hour: float
    reference_type: str = "V100"
    gpu_minutes: tuple[float, float] = (10.0, 100.0)
    level_weights: Mapping[tuple[int, ...], float] = field(default_factory=lambda: {(1, 2, 4, 8): 1.0})
    deadline_factors: tuple[float, float] | None = None


def arriving_jobs(recipe: Recipe, table: ThroughputTable, *, seed: int) -> tuple[TypedJob, ...]:
    """The jobs in order of arrival; the same for the same seed."""
    chance = np.random.default_rng(seed)
    arrived_s_J = np.cumsum(chance.exponential(3600.0 / recipe.jobs_per_hour, recipe.num_jobs))
    size_J = chance.random(recipe.num_jobs)
    model_J = chance.integers(len(table.models), size=recipe.num_jobs)
    weights = np.array(list(recipe.level_weights.values()))
    level_J = chance.choice(len(weights), size=recipe.num_jobs, p=weights / weights.sum())
    factor_J = np.full(recipe.num_jobs, math.inf)
    if recipe.deadline_factors:
        factor_J = chance.uniform(*recipe.deadline_factors, recipe.num_jobs)
    least_minutes, most_minutes = recipe.gpu_minutes
    jobs = list[TypedJob]()
    for j in range(recipe.num_jobs):
        model = table.models[model_J[j]]
        gpu_s = 60.0 * least_minutes * (most_minutes / least_minutes) ** size_J[j]
        jobs.append(
            TypedJob(
                job_id=f"job-{j + 1:04d}",
                model=model,
                num_iterations=gpu_s * table.throughput_per_gpu(model, recipe.reference_type),
                arrived_at_s=float(arrived_s_J[j]),
                levels=tuple(recipe.level_weights)[level_J[j]],
                size_class=SIZE_CLASSES[int(size_J[j] * len(SIZE_CLASSES))],
                deadline_s=float(arrived_s_J[j] + factor_J[j] * gpu_s),
            )
        )
    return tuple(jobs)


# --- active job ----------------------------------------------------------------------------------------
# An active job and what it has received; what a policy sees of it, and what a policy is.


@dataclass(slots=True, eq=False)
class ActiveJob:
    """received_rounds_C: in each configuration. num_rounds: since the job is active."""

    job: TypedJob
    configurations: Configurations
    left_iterations: float
    num_rounds: int = 0
    received_rounds_C: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.received_rounds_C = np.zeros(len(self.configurations.throughput_C))

    @property
    def attained_service(self) -> float:
        """Iterations done, in seconds of one average GPU of the pool."""
        return (self.job.num_iterations - self.left_iterations) / self.configurations.equal_throughput


# For each active job, in the given order, the part of the time in [0, 1] in which it should hold each configuration.
# Arguments: the active jobs, the pool, now in seconds.
Shares = Sequence[Floats]
Policy = Callable[[Sequence[ActiveJob], TypedPool, float], Shares]


# --- One round: the shares of the policy become whole GPUs ---------------------------------------------
# As in Gavel, the pairs of job and configuration are served in order of priority, which is the share over the part of
# its rounds that the job has received in this configuration. What is left goes to jobs that wait, on the fewest GPUs,
# and then to jobs that run faster with it; those with the least attained service are first. Source: Narayanan et al.,
# section 5.

WAITING = -1
_LEAST_SHARE = 1e-6  # below it, rounding errors of the solver


def place_round(jobs: Sequence[ActiveJob], shares: Shares, pool: TypedPool) -> list[int]:
    """The index of each job's configuration in this round, or WAITING. Jobs are in order of arrival."""
    free_I = pool.num_gpus_I
    placed = [WAITING] * len(jobs)
    for _, _, j, c in sorted(_candidates(jobs, shares)):
        needed_I = jobs[j].configurations.num_gpus_CI[c]
        if placed[j] == WAITING and (needed_I <= free_I).all():
            placed[j] = c
            free_I -= needed_I
    by_service = sorted(range(len(jobs)), key=lambda j: (jobs[j].attained_service, j))
    for j in by_service:
        if placed[j] == WAITING:
            placed[j] = _fewest_gpus(jobs[j], free_I)
            free_I -= _held(jobs[j], placed[j])
    for j in by_service:
        if placed[j] != WAITING:
            available_I = free_I + _held(jobs[j], placed[j])
            placed[j] = _fastest(jobs[j], available_I)
            free_I = available_I - _held(jobs[j], placed[j])
    return placed


def _candidates(jobs: Sequence[ActiveJob], shares: Shares) -> list[tuple[float, float, int, int]]:
    """(-priority, -share, job, configuration) of each positive share; a share that was never served is first."""
    candidates = list[tuple[float, float, int, int]]()
    for j, (job, share_C) in enumerate(zip(jobs, shares, strict=True)):
        for c in np.flatnonzero(share_C > _LEAST_SHARE):
            share, received = float(share_C[c]), float(job.received_rounds_C[c])
            priority = share * job.num_rounds / received if received else np.inf
            candidates.append((-priority, -share, j, int(c)))
    return candidates


def _held(job: ActiveJob, configuration: int) -> Integers:
    num_gpus_CI = job.configurations.num_gpus_CI
    return num_gpus_CI[configuration] if configuration != WAITING else np.zeros_like(num_gpus_CI[0])


def _fitting(job: ActiveJob, free_I: Integers) -> NDArray[np.bool_]:
    return (job.configurations.num_gpus_CI - free_I).max(axis=1) <= 0


def _fewest_gpus(job: ActiveJob, free_I: Integers) -> int:
    """The fastest of the configurations with the fewest GPUs among those that fit, or WAITING."""
    fitting_C = np.flatnonzero(_fitting(job, free_I))
    choices = job.configurations
    return int(
        min(fitting_C, key=lambda c: (choices.num_gpus_CI[c].sum(), -choices.throughput_C[c], c), default=WAITING)
    )


def _fastest(job: ActiveJob, available_I: Integers) -> int:
    """The fastest configuration that fits; one does, since the job is placed."""
    return int(np.where(_fitting(job, available_I), job.configurations.throughput_C, 0.0).argmax())


# --- Jobs on a pool of several GPU types, in rounds, as in Gavel ---------------------------------------
# A job that arrives within a round waits for the next one. The GPUs of a job that finishes within a round stay unused
# until the next one. The policy is asked again in each round whose active jobs differ from those of the last round. A
# change of configuration costs nothing. Axes: I = GPU types of the pool.

ROUND_S = 360.0  # six minutes


@dataclass(frozen=True, slots=True)
class FinishedJob:
    job: TypedJob
    finished_at_s: float

    @property
    def completion_s(self) -> float:
        return self.finished_at_s - self.job.arrived_at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """finished: all jobs, in order of arrival. gpu_hours: by type, while a job ran."""

    finished: tuple[FinishedJob, ...]
    gpu_hours: dict[str, float]

    @property
    def makespan_s(self) -> float:
        """The time from the first arrival to the last end."""
        return max(done.finished_at_s for done in self.finished) - self.finished[0].job.arrived_at_s

    @property
    def mean_completion_s(self) -> float:
        return float(np.mean([done.completion_s for done in self.finished]))

    @property
    def mean_completion_s_by_class(self) -> dict[str, float]:
        """The mean completion time of each size class that has a job."""
        names = sorted({done.job.size_class for done in self.finished})
        return {
            name: float(np.mean([done.completion_s for done in self.finished if done.job.size_class == name]))
            for name in names
        }

    @property
    def deadlines_met(self) -> float:
        """The part of the jobs that finished by their deadlines."""
        return float(np.mean([done.finished_at_s <= done.job.deadline_s for done in self.finished]))


@dataclass(slots=True, eq=False)
class _Rounds:
    """The state between two rounds. gpu_s_I: while a job ran."""

    pool: TypedPool
    policy: Policy
    gpu_s_I: Floats
    active: list[ActiveJob] = field(default_factory=list[ActiveJob])
    shares: Shares | None = None  # None: the active jobs have changed
    finished: list[FinishedJob] = field(default_factory=list[FinishedJob])

    def activate(self, jobs: Sequence[ActiveJob]) -> None:
        self.active.extend(jobs)
        if jobs:
            self.shares = None

    def run(self, now_s: float, round_s: float) -> None:
        """One round."""
        if self.shares is None:
            self.shares = self.policy(self.active, self.pool, now_s)
        for job, configuration in zip(self.active, place_round(self.active, self.shares, self.pool), strict=True):
            job.num_rounds += 1
            if configuration != WAITING:
                self._run_job(job, configuration, now_s, round_s)
        running = [job for job in self.active if job.left_iterations > 0]
        if len(running) < len(self.active):
            self.active, self.shares = running, None

    def _run_job(self, job: ActiveJob, configuration: int, now_s: float, round_s: float) -> None:
        throughput = float(job.configurations.throughput_C[configuration])
        needed_s = job.left_iterations / throughput
        job.received_rounds_C[configuration] += 1
        self.gpu_s_I += job.configurations.num_gpus_CI[configuration] * min(needed_s, round_s)
        if needed_s <= round_s:
            job.left_iterations = 0.0
            self.finished.append(FinishedJob(job.job, now_s + needed_s))
        else:
            job.left_iterations -= throughput * round_s


def simulate_rounds(
    jobs: Sequence[TypedJob],
    table: ThroughputTable,
    pool: TypedPool,
    policy: Policy,
    *,
    mix_efficiency: float | None = None,
    round_s: float = ROUND_S,
) -> Outcome:
    """Run all jobs to their ends; deterministic.

    jobs: at least one, in order of arrival. mix_efficiency: of GPUs of several types in one job; None allows no mix.
    Raises BadSettings if the table lacks a model or a type, or if a job runs on no GPUs of the pool.
    """
    choices = dict[tuple[str, tuple[int, ...]], Configurations]()
    for job in jobs:
        key = (job.model, job.levels)
        if key not in choices:
            choices[key] = configurations(table, pool, *key, mix_efficiency)
    waiting = deque(ActiveJob(job, choices[job.model, job.levels], job.num_iterations) for job in jobs)
    rounds = _Rounds(pool, policy, np.zeros(len(pool.gpu_types)))
    number = 0
    while waiting or rounds.active:
        if not rounds.active:
            number = max(number, math.ceil(waiting[0].job.arrived_at_s / round_s))
        now_s = number * round_s
        rounds.activate(_arrived(waiting, now_s))
        rounds.run(now_s, round_s)
        number += 1
    order = {job.job_id: index for index, job in enumerate(jobs)}
    return Outcome(
        finished=tuple(sorted(rounds.finished, key=lambda done: order[done.job.job_id])),
        gpu_hours=dict(zip(pool.gpu_types, (rounds.gpu_s_I / 3600).tolist(), strict=True)),
    )


def _arrived(waiting: deque[ActiveJob], now_s: float) -> list[ActiveJob]:
    arrived = list[ActiveJob]()
    while waiting and waiting[0].job.arrived_at_s <= now_s:
        arrived.append(waiting.popleft())
    return arrived
