"""A schedule made with hindsight, every resize paid: what is reachable below the clairvoyant bound.

The gap between the bound and an online scheduler has two parts: the gain of knowing the future (from the scheduler to
this schedule), and what no known schedule reaches (from here to the bound). Found by search: jobs are fitted one at a
time at the bound's prices; then a few at a time are taken out and others tried in their place. In a pool of several GPU
types each job has GPUs of one type, as in the promises of the services; the bound also divides a job over types.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.bound.clairvoyant_bound import Bound, clairvoyant_bound
from elasticflow.simulator.bound.feasible_demand import IntArray, feasible_alone
from elasticflow.simulator.bound.timetable import Timetable
from elasticflow.simulator.verification.certificates import Held
from elasticflow.simulator.workload.workload import Workload

_MAX_TAKEN_OUT, _MAX_TRIED = 4, 12  # jobs in one move


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """Jobs that meet their deadlines together, by id: their schedules, and the GPU type of each."""

    schedules: dict[str, tuple[Held, ...]]
    gpu_types: dict[str, str]

    @property
    def met(self) -> int:
        return len(self.schedules)

    @property
    def gpu_hours(self) -> float:
        held = (segment for schedule in self.schedules.values() for segment in schedule)
        return sum((end_s - start_s) * num_gpus for start_s, end_s, num_gpus in held) / 3600


def hindsight_schedule(
    workload: Workload,
    num_gpus_by_type: Mapping[str, int],
    cost: ResizeCost,
    seed: int = 0,
    moves: int = 20_000,
    bound: Bound | None = None,
) -> Hindsight:
    """The best schedule found in `moves` moves, or one that reaches the bound.

    num_gpus_by_type: of the pool; the type is "" if all GPUs are equal. bound: the clairvoyant bound, if known already.
    """
    bound = bound or clairvoyant_bound(workload, num_gpus_by_type, cost)
    alone = frozenset(feasible_alone(workload, num_gpus_by_type, cost))
    jobs = [job for job in workload.jobs if job.job_id in alone]
    timetable = Timetable(jobs, num_gpus_by_type, cost, bound.prices)
    chance = np.random.default_rng(seed)
    cheapest_first = sorted(range(len(jobs)), key=lambda job: (timetable.insert(job), timetable.remove(job))[0])
    for job in cheapest_first:
        timetable.insert(job)
    for _ in range(moves):
        missing = timetable.missing()
        if not len(missing) or timetable.num_met >= bound.whole_jobs_met:
            break
        _move(timetable, int(chance.choice(missing)), chance)
    met = timetable.met()
    return Hindsight(
        schedules={jobs[job].job_id: timetable.schedule(job) for job in met},
        gpu_types={jobs[job].job_id: timetable.gpu_type(job) for job in met},
    )


def _move(timetable: Timetable, added: int, chance: np.random.Generator) -> None:
    """Takes some jobs out, inserts `added`, then these and other missing ones; undone if nothing is gained."""
    neighbours = timetable.neighbours[added]
    is_met = timetable.is_met_J[neighbours]
    taken_out = _some(neighbours[is_met], int(chance.integers(_MAX_TAKEN_OUT + 1)), chance)
    others = np.concatenate([taken_out, _some(neighbours[~is_met], _MAX_TRIED, chance)])
    before_met, before_cost = timetable.num_met, timetable.total_cost
    kept = [(job, timetable.take(job)) for job in taken_out.tolist()]
    inserted = [job for job in [added, *chance.permutation(others).tolist()] if timetable.insert(job) < math.inf]
    gained = timetable.num_met - before_met
    if gained < 0 or (gained == 0 and timetable.total_cost >= before_cost):
        for job in inserted:
            timetable.remove(job)
        for job, entry in kept:
            timetable.restore(job, entry)


def _some(jobs: IntArray, at_most: int, chance: np.random.Generator) -> IntArray:
    return chance.choice(jobs, min(at_most, len(jobs)), replace=False) if len(jobs) and at_most > 0 else jobs[:0]
