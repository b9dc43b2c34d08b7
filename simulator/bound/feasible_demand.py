"""The jobs that could meet their deadlines, as arrays, and the intervals of time between their events.

On a pool of several GPU types, a job may hold GPUs of all types at once, and does at most the sum of its throughputs:
that is an upper bound of one type at a time, of moves between types and of workers on several types.
Axes: G GPU types of the pool, J jobs, S steps of all their curves, B instants, I = B - 1 intervals between them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.timing.training_time import DONE_WITHIN_S
from elasticflow.simulator.workload.workload import TraceJob, Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_CLOCK_STEPS = 4  # of the float that a deadline is
_ROUNDING = 1e-9  # forgiven part of a job: a bound must not fall below what a scheduler reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class FeasibleDemand:
    """What each job needs, and when it can use GPUs.

    opens_s_J, closes_s_J: the earliest second of training (the cheapest start is paid) and the deadline.
    first_step_J: where the steps of each job begin among the S steps; J + 1 entries.
    type_S, num_gpus_S, gain_S: a step adds so many GPUs of this type, and each of these adds so large a part of the job
    in a second; the steps of a job on a type are those of the concave hull of its curve there, so gains fall.
    """

    job_ids: tuple[str, ...]
    opens_s_J: FloatArray
    closes_s_J: FloatArray
    first_step_J: IntArray
    type_S: IntArray
    num_gpus_S: FloatArray
    gain_S: FloatArray

    @staticmethod
    def of(workload: Workload, num_gpus_by_type: Mapping[str, int], cost: ResizeCost) -> "FeasibleDemand":
        """The demand of the SLO jobs that are feasible alone: no scheduler meets the others, in part or whole."""
        jobs = [job for job in workload.jobs if _is_feasible_alone(job, num_gpus_by_type, cost)]
        steps_J = [_hull_steps(job, num_gpus_by_type) for job in jobs]
        stops_s = [min(cost.seconds(n) for _, n, _ in _levels(job, num_gpus_by_type)) for job in jobs]
        opens_s = [job.submitted_at_s + stop_s for job, stop_s in zip(jobs, stops_s, strict=True)]
        return FeasibleDemand(
            job_ids=tuple(job.job_id for job in jobs),
            opens_s_J=np.array(opens_s, dtype=np.float64),
            closes_s_J=np.array([job.deadline_s for job in jobs], dtype=np.float64),
            first_step_J=np.cumsum([0, *map(len, steps_J)], dtype=np.int64),
            type_S=np.array([gpu_type for steps in steps_J for gpu_type, _, _ in steps], dtype=np.int64),
            num_gpus_S=np.array([added for steps in steps_J for _, added, _ in steps], dtype=np.float64),
            gain_S=np.array([gain for steps in steps_J for _, _, gain in steps], dtype=np.float64),
        )

    @property
    def num_jobs(self) -> int:
        return len(self.job_ids)

    def components(self) -> "list[FeasibleDemand]":
        """Groups of jobs whose windows touch no other group's, in order of time: each is a separate problem."""
        order = np.argsort(self.opens_s_J, kind="stable")
        busy_until_s = np.maximum.accumulate(self.closes_s_J[order])
        breaks = np.flatnonzero(self.opens_s_J[order][1:] >= busy_until_s[:-1]) + 1
        return [self.only(np.sort(members)) for members in np.split(order, breaks) if len(members)]

    def only(self, members: IntArray) -> "FeasibleDemand":
        """The demand of these jobs, by their positions in J."""
        steps_J = np.split(np.arange(len(self.gain_S)), self.first_step_J[1:-1])
        steps = [steps_J[job] for job in members]
        chosen = np.concatenate(steps)
        return FeasibleDemand(
            job_ids=tuple(self.job_ids[job] for job in members),
            opens_s_J=self.opens_s_J[members],
            closes_s_J=self.closes_s_J[members],
            first_step_J=np.cumsum([0, *map(len, steps)], dtype=np.int64),
            type_S=self.type_S[chosen],
            num_gpus_S=self.num_gpus_S[chosen],
            gain_S=self.gain_S[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The intervals in which a relaxation counts GPU-seconds.

    first_J, last_J: job j's window overlaps the intervals first_J[j] up to, not including, last_J[j].
    complete: every event is an instant; else neighbouring intervals are merged.
    """

    instants_s_B: FloatArray
    first_J: IntArray
    last_J: IntArray
    complete: bool

    @staticmethod
    def of(demand: FeasibleDemand, max_intervals: int | None = None) -> "Grid":
        """Intervals between the events of `demand`, equally many in each merged interval.

        A program on merged intervals is still a relaxation: take any solution of the complete one and add up what
        each job holds, and what the cluster has, over the intervals that were merged. The sums keep the merged
        constraints, a job being counted there with just its own window's overlap, and meet the same jobs. In terms of
        prices: a price that is constant over a merged interval is one of those that the complete program may choose.
        """
        events_s = np.unique(np.concatenate([demand.opens_s_J, demand.closes_s_J]))
        kept = len(events_s) if max_intervals is None else min(len(events_s), max(max_intervals, 1) + 1)
        instants_s = events_s[np.linspace(0, len(events_s) - 1, kept).round().astype(np.int64)]
        return Grid(
            instants_s_B=instants_s,
            first_J=np.searchsorted(instants_s, demand.opens_s_J, side="right") - 1,
            last_J=np.searchsorted(instants_s, demand.closes_s_J, side="left"),
            complete=kept == len(events_s),
        )

    @property
    def lengths_s_I(self) -> FloatArray:
        return np.diff(self.instants_s_B)


def feasible_alone(workload: Workload, num_gpus_by_type: Mapping[str, int], cost: ResizeCost) -> tuple[str, ...]:
    """SLO jobs that would meet their deadlines alone on the empty cluster, by id, in order of submission."""
    return tuple(job.job_id for job in workload.jobs if _is_feasible_alone(job, num_gpus_by_type, cost))


def _is_feasible_alone(job: TraceJob, num_gpus_by_type: Mapping[str, int], cost: ResizeCost) -> bool:
    """Whether some level of each type, started at submission, is fast enough together.

    Changing levels does not help: n GPUs held for t seconds give rate(n) * (t - cost(n)) iterations, which is linear in
    t, so one level for the whole window is best.
    """
    if job.job_class is not JobClass.SLO or job.deadline_s is None:
        return False
    window_s = job.deadline_s - job.submitted_at_s
    most: dict[int, float] = {}
    for gpu_type, level, rate in _levels(job, num_gpus_by_type):
        most[gpu_type] = max(most.get(gpu_type, 0.0), rate * (window_s - cost.seconds(level)))
    return sum(most.values()) >= _needed_iterations(job, num_gpus_by_type)


def _needed_iterations(job: TraceJob, num_gpus_by_type: Mapping[str, int]) -> float:
    """Iterations less those that the simulation forgives, by DONE_WITHIN_S and by the rounding of its clock.

    Always more than 0: a part of 0 is undefined.
    """
    fastest: dict[int, float] = {}
    for gpu_type, _, rate in _levels(job, num_gpus_by_type):
        fastest[gpu_type] = max(fastest.get(gpu_type, 0.0), rate)
    clock_s = job.submitted_at_s if job.deadline_s is None else job.deadline_s
    forgiven_s = DONE_WITHIN_S + _CLOCK_STEPS * math.ulp(clock_s)
    needed = job.num_iterations * (1 - _ROUNDING) - sum(fastest.values()) * forgiven_s
    return max(needed, job.num_iterations * _ROUNDING)


def _levels(job: TraceJob, num_gpus_by_type: Mapping[str, int]) -> list[tuple[int, int, float]]:
    """(type, GPUs, iterations/s), by type and number."""
    return [
        (gpu_type, level, rate)
        for gpu_type, (name, num_gpus) in enumerate(num_gpus_by_type.items())
        if (curve := job.curve_on(name)) is not None
        for level, rate in curve.rate_by_num_gpus.items()
        if level <= num_gpus
    ]


def _hull_steps(job: TraceJob, num_gpus_by_type: Mapping[str, int]) -> list[tuple[int, float, float]]:
    """(type, added GPUs, part of the job that each does in a second): of each type by falling gain, on the concave
    hull of the curve."""
    # A job that is feasible alone only with the forgiven iterations counts as just feasible.
    needed = _needed_iterations(job, num_gpus_by_type)
    steps = list[tuple[int, float, float]]()
    for gpu_type, levels in groupby(_levels(job, num_gpus_by_type), key=itemgetter(0)):
        hull = [(0, 0.0)]
        for _, level, rate in levels:
            if rate <= hull[-1][1]:
                continue  # more GPUs that are no faster
            while len(hull) > 1 and _gain(hull[-1], (level, rate)) >= _gain(hull[-2], hull[-1]):
                hull.pop()
            hull.append((level, rate))
        steps += [(gpu_type, float(high[0] - low[0]), _gain(low, high) / needed) for low, high in pairwise(hull)]
    return steps


def _gain(low: tuple[int, float], high: tuple[int, float]) -> float:
    return (high[1] - low[1]) / (high[0] - low[0])
