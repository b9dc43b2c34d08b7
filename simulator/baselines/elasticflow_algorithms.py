"""ElasticFlow's Algorithms 1 and 2 as the paper states them, first come, and the same without admission.

Algorithm 1: in the order of deadlines each job is filled progressively, in slots before its deadline; a job is admitted
if that satisfies every job. Algorithm 2: GPUs that the minimum satisfactory shares leave free go, one level at a time,
where they save the most GPU time. Numbers of GPUs are powers of two (section 4.3). No plan has costs of resizes.
Axis: T = slots from now on. Source: ElasticFlow, sections 4.1, 4.2 and 4.4.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.compiled_loops import Floats, Integers, compiled
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.baselines.baseline import BaselineJob, Shares, by_arrival, by_deadline

# --- The loops of ElasticFlow's Algorithm 1 over time slots, compiled ----------------------------------
# Axes: T = slots from now on; L = levels of one job, ascending, level 0 without GPUs first.


class _Levels(NamedTuple):
    """The levels of a job, and iterations/s at each."""

    num_gpus_L: Integers
    rates_L: Floats


@compiled
def fill(plan_T: Integers, free_T: Integers, seconds_T: Floats, levels: _Levels, first: int, iterations: float) -> bool:
    """Write into plan_T the positions of the levels from slot `first` on; whether the iterations are done by its end.

    The cap rises level by level; for each one the slots are filled from the last to the first until it is enough.
    """
    num_gpus_L, rates_L = levels
    done = 0.0
    for slot in range(first):
        done += rates_L[plan_T[slot]] * seconds_T[slot]
    plan_T[first:] = 0
    if done >= iterations:
        return True
    for cap in range(1, len(num_gpus_L)):
        for slot in range(len(plan_T) - 1, first - 1, -1):
            level = cap
            while num_gpus_L[level] > free_T[slot]:
                level -= 1
            done += (rates_L[level] - rates_L[plan_T[slot]]) * seconds_T[slot]
            plan_T[slot] = level
            if done >= iterations:
                return True
    return False


@compiled
def fill_forward(plan_T: Integers, free_T: Integers, seconds_T: Floats, levels: _Levels, iterations: float) -> None:
    """Write into plan_T the largest free level of each slot, from the first one until the iterations are done."""
    plan_T[:] = 0
    for slot in range(len(plan_T)):
        if iterations <= 0:
            return
        level = len(levels.num_gpus_L) - 1
        while levels.num_gpus_L[level] > free_T[slot]:
            level -= 1
        plan_T[slot] = level
        iterations -= levels.rates_L[level] * seconds_T[slot]


@compiled
def gpu_seconds(plan_T: Integers, seconds_T: Floats, levels: _Levels, iterations: float) -> float:
    """The GPU-seconds of the plan until the iterations are done."""
    used = 0.0
    for slot in range(len(plan_T)):
        rate = levels.rates_L[plan_T[slot]]
        seconds = seconds_T[slot]
        if rate > 0.0:
            seconds = min(seconds, iterations / rate)
            iterations -= rate * seconds
            used += levels.num_gpus_L[plan_T[slot]] * seconds
        if iterations <= 0.0:
            break
    return used


# --- elasticflow algorithms ----------------------------------------------------------------------------

SLOT_S = 60.0  # that of the published program in Figure 8
GROWTH = 0.02  # a slot far away is this part of its distance: the paper leaves the length open


@dataclass(frozen=True, slots=True)
class ElasticFlowAlgorithms:
    """admission: off, every job is admitted (EDF + elastic scaling).

    A job that cannot be satisfied any more has the largest levels that are free, in its turn: what the published
    program does with it. Without admission such jobs take the GPUs of all later deadlines.
    """

    name: str = "elasticflow-algorithms"
    admission: bool = True

    def admits(self, arriving: BaselineJob, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> bool:
        if not self.admission or arriving.due_s == math.inf:
            return True
        plans = _Plans([*jobs, arriving], num_gpus, now_s)
        if not plans.unsatisfied:
            return True
        if arriving.job_id in plans.unsatisfied:
            return False
        return plans.unsatisfied <= _Plans(jobs, num_gpus, now_s).unsatisfied  # those were so before

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        plans = _Plans(jobs, num_gpus, now_s, until_full=True)
        plans.allocate_the_rest()
        return Shares(num_gpus_by_job=plans.now(), valid_until_s=plans.next_change_s())


@dataclass(slots=True)
class _Plan:
    """The position of a job's level in each slot until its deadline; free_T: what jobs before it leave."""

    job: BaselineJob
    levels: _Levels
    free_T: Integers
    seconds_T: Floats
    plan_T: Integers

    def gpu_seconds(self, plan_T: Integers) -> float:
        return gpu_seconds(plan_T, self.seconds_T, self.levels, self.job.remaining_iterations)

    def first_change(self, *, downwards: bool) -> int:
        """The first slot with a higher level than now, or with any other one; 0 if there is none."""
        changes = self.plan_T != self.plan_T[0] if downwards else self.plan_T > self.plan_T[0]
        return int(np.argmax(changes))

    def one_level_more(self) -> Integers | None:
        """Line 6 to 8 of Algorithm 2: one level more in the first slot, and later slots filled anew."""
        if self.plan_T[0] + 1 == len(self.levels.num_gpus_L):
            return None
        raised_T = self.plan_T.copy()
        raised_T[0] += 1
        fill(raised_T, self.free_T, self.seconds_T, self.levels, 1, self.job.remaining_iterations)
        return raised_T


class _Plans:
    """The plans of all jobs, in the order of their deadlines.

    until_full: leave out jobs for which no GPU is free now; without admission these are many.
    """

    def __init__(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float, *, until_full: bool = False) -> None:
        dated = sorted((job for job in jobs if job.due_s < math.inf), key=by_deadline)
        self._undated = sorted((job for job in jobs if job.due_s == math.inf), key=by_arrival)
        self._shares: dict[str, int] = {}  # of undated jobs
        horizon_s = max((job.due_s - now_s for job in dated), default=0.0)
        self._edges_s = _edges_s(max(horizon_s, SLOT_S))
        self._now_s, self._num_gpus = now_s, num_gpus
        self.unsatisfied = set[str]()
        self._plans: dict[str, _Plan] = {}
        self._is_part = False
        free_T = np.full(len(self._edges_s) - 1, num_gpus)
        for job in dated:
            if until_full and not free_T[0]:
                self._is_part = True
                break
            self._plans[job.job_id] = plan = self._plan(job, free_T)
            free_T = free_T.copy()
            free_T[: len(plan.plan_T)] -= plan.levels.num_gpus_L[plan.plan_T]

    def _plan(self, job: BaselineJob, free_T: Integers) -> _Plan:
        levels = job.curve.derived(_levels)
        left_s, iterations = job.due_s - self._now_s, job.remaining_iterations
        num_slots = int(np.searchsorted(self._edges_s, left_s, side="left"))
        if num_slots:
            seconds_T = np.diff(np.minimum(self._edges_s[: num_slots + 1], left_s))
            plan_T = np.zeros(num_slots, dtype=np.int64)
            if fill(plan_T, free_T, seconds_T, levels, 0, iterations):
                return _Plan(job, levels, free_T, seconds_T, plan_T)
        self.unsatisfied.add(job.job_id)
        seconds_T, plan_T = np.diff(self._edges_s), np.zeros(len(free_T), dtype=np.int64)
        fill_forward(plan_T, free_T, seconds_T, levels, iterations)
        return _Plan(job, levels, free_T, seconds_T, plan_T)

    def now(self) -> dict[str, int]:
        """GPUs of each job that has any."""
        planned = {job_id: int(plan.levels.num_gpus_L[plan.plan_T[0]]) for job_id, plan in self._plans.items()}
        return {job_id: share for job_id, share in (planned | self._shares).items() if share}

    def next_change_s(self) -> float:
        """When a plan gives a job more GPUs than now, or leaves some to the jobs that have no plan."""
        firsts = (plan.first_change(downwards=self._is_part) for plan in self._plans.values())
        return min((self._now_s + float(self._edges_s[slot]) for slot in firsts if slot), default=math.inf)

    def allocate_the_rest(self) -> None:
        """Algorithm 2. The queue's head has the greatest GPU time saved for each added GPU; ties: by deadline."""
        num_free = self._num_gpus - sum(self.now().values())
        if not num_free:
            return
        order = [*self._plans, *(job.job_id for job in self._undated)]
        undated = {job.job_id: job for job in self._undated}
        queue = [step for at, job_id in enumerate(order) if (step := self._step(at, job_id, undated)) is not None]
        heapq.heapify(queue)
        while queue and num_free:
            _, position, added, raised_T = heapq.heappop(queue)
            if added > num_free:
                continue
            job_id = order[position]
            num_free -= added
            if job_id in undated:
                self._shares[job_id] = self._shares.get(job_id, 0) + added
            else:
                assert raised_T is not None
                self._plans[job_id].plan_T = raised_T
            if (step := self._step(position, job_id, undated)) is not None:
                heapq.heappush(queue, step)

    def _step(
        self, position: int, job_id: str, undated: dict[str, BaselineJob]
    ) -> tuple[float, int, int, Integers | None] | None:
        """Minus the GPU time saved for each added GPU, the job's position, GPUs to add, its new plan."""
        if job_id in undated:
            return _step_of_undated(position, undated[job_id], self._shares.get(job_id, 0))
        plan = self._plans[job_id]
        raised_T = plan.one_level_more()
        if raised_T is None:
            return None
        added = int(plan.levels.num_gpus_L[raised_T[0]] - plan.levels.num_gpus_L[plan.plan_T[0]])
        saved = plan.gpu_seconds(plan.plan_T) - plan.gpu_seconds(raised_T)
        return -saved / added, position, added, raised_T


def _step_of_undated(position: int, job: BaselineJob, share: int) -> tuple[float, int, int, None] | None:
    """Its deadline is infinite: without GPUs it never ends, so its first level comes first."""
    level = job.curve.next_level.get(share)
    if level is None:
        return None
    if not share:
        return -math.inf, position, level, None
    used, more = (num * job.remaining_iterations / job.curve.throughput(num) for num in (share, level))
    return (more - used) / (level - share), position, level - share, None


def _levels(curve: ScalingCurve) -> _Levels:
    """Levels that make the job faster, and 0."""
    levels = (0, *curve.levels)
    return _Levels(np.array(levels, dtype=np.int64), np.array([curve.throughput(level) for level in levels]))


def _edges_s(horizon_s: float) -> Floats:
    """Edges of slots from 0 to at least the horizon: SLOT_S, or GROWTH of the distance where that is longer."""
    growing_s = SLOT_S / GROWTH
    near_s = np.arange(0.0, min(horizon_s, growing_s) + SLOT_S, SLOT_S)
    if near_s[-1] >= horizon_s:
        return near_s
    count = math.ceil(math.log(horizon_s / near_s[-1]) / math.log1p(GROWTH))
    return np.concatenate((near_s, near_s[-1] * (1 + GROWTH) ** np.arange(1, count + 1)))
