"""Jobs on a pool of several GPU types, in rounds, as in Gavel.

A job that arrives within a round waits for the next one. The GPUs of a job that finishes within a round stay unused
until the next one. The policy is asked again in each round whose active jobs differ from those of the last round.
A change of configuration costs nothing.
Axes: I = GPU types of the pool.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from elasticflow.shared.scheduling.compiled.compile import Floats
from elasticflow.simulator.heterogeneous.active_job import ActiveJob, Policy, Shares
from elasticflow.simulator.heterogeneous.configurations import Configurations, configurations
from elasticflow.simulator.heterogeneous.job_arrivals import TypedJob
from elasticflow.simulator.heterogeneous.round_placement import WAITING, place_round
from elasticflow.simulator.heterogeneous.throughput_table import ThroughputTable
from elasticflow.simulator.workload.typed_pool import TypedPool

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
        """From the first arrival to the last end."""
        return max(done.finished_at_s for done in self.finished) - self.finished[0].job.arrived_at_s

    @property
    def mean_completion_s(self) -> float:
        return float(np.mean([done.completion_s for done in self.finished]))

    @property
    def mean_completion_s_by_class(self) -> dict[str, float]:
        """Of each size class that has a job."""
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
