"""No admitted job ends late, on a virtual clock that charges every resize exactly as the model does."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.allocation import Allocation, allocate
from shared.scheduling.free_profile import Schedule
from shared.scheduling.progressive_filling import TIME_TOLERANCE_S, SchedulableJob
from shared.scheduling.scaling_curve import ScalingCurve


def random_job(rng: np.random.Generator, number: int, now_s: float, num_gpus: int) -> SchedulableJob:
    """A job with a curve that may lack small levels or fall at the top, and a deadline from tight to easy."""
    smallest = int(rng.choice([1, 1, 1, 2, 4]))
    levels = tuple(level for k in range(8) if smallest <= (level := 2**k) <= 2 * num_gpus)
    exponent = rng.uniform(0.3, 1.0)
    rates = tuple(float(level**exponent * rng.uniform(0.8, 1.0)) for level in levels)
    duration_s = float(rng.lognormal(5.5, 1.0))
    return SchedulableJob(
        job_id=f"job-{number:04d}",
        curve=ScalingCurve(levels, rates),
        remaining_iterations=duration_s * rates[int(rng.integers(0, len(rates)))],
        deadline_s=now_s + duration_s * float(rng.uniform(0.5, 4.0)),
        resize_cost_s=float(rng.choice([0.0, 3.0, 15.0, 60.0])),
    )


@dataclass
class Cluster:
    """The world of the simulation: jobs that advance as the model says, and the scheduler that steers them."""

    num_gpus: int
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.promised: dict[str, SchedulableJob] = {}
        self.opportunistic: dict[str, SchedulableJob] = {}
        self.kept: dict[str, Schedule] = {}
        self.finished_s: dict[str, float] = {}
        self.deadline_s: dict[str, float] = {}
        self.num_refused = 0
        self.num_resizes = 0

    def advance(self, to_s: float) -> None:
        """Let every job train until `to_s`."""
        for jobs in (self.promised, self.opportunistic):
            for job_id, job in list(jobs.items()):
                rate = job.curve.throughput(job.current_num_gpus)
                worked_s = max(0.0, to_s - max(self.now_s, job.stalled_until_s))
                left = job.remaining_iterations - rate * worked_s
                jobs[job_id] = replace(job, remaining_iterations=left)
                if rate and left <= rate * TIME_TOLERANCE_S:
                    self.finished_s[job_id] = to_s
                    del jobs[job_id]
        self.now_s = to_s

    def next_finish_s(self) -> float:
        return min(
            (
                max(self.now_s, job.stalled_until_s) + job.remaining_iterations / rate
                for job in (*self.promised.values(), *self.opportunistic.values())
                if (rate := job.curve.throughput(job.current_num_gpus))
            ),
            default=math.inf,
        )

    def schedule(self, arriving: SchedulableJob | None) -> Allocation:
        """One decision: plan, admit, allocate, and resize the jobs accordingly."""
        plan = AdmissionPlan.build(self.promised.values(), self.num_gpus, self.now_s, self.kept)
        assert not plan.late
        if arriving is not None:
            admitted = plan.admit(arriving)
            if admitted is None:
                self.num_refused += 1
                self.opportunistic[arriving.job_id] = replace(arriving, deadline_s=math.inf)
            else:
                plan = admitted
                self.promised[arriving.job_id] = arriving
                self.deadline_s[arriving.job_id] = arriving.deadline_s
        allocation = allocate(
            plan,
            list(self.promised.values()),
            list(self.opportunistic.values()),
            self.num_gpus,
            self.now_s,
        )
        assert sum(allocation.num_gpus_by_job.values()) <= self.num_gpus
        self.kept = dict(allocation.schedules)
        for jobs in (self.promised, self.opportunistic):
            for job_id, job in jobs.items():
                num_gpus = allocation.num_gpus_by_job[job_id]
                if num_gpus != job.current_num_gpus:
                    stalled_until_s = self.now_s + job.resize_cost_s if num_gpus else -math.inf
                    jobs[job_id] = replace(job, current_num_gpus=num_gpus, stalled_until_s=stalled_until_s)
                    self.num_resizes += num_gpus > 0
        return allocation


def simulate(seed: int, num_gpus: int, num_jobs: int, mean_gap_s: float) -> Cluster:
    rng = np.random.default_rng(seed)
    arrivals_s = np.cumsum(rng.exponential(mean_gap_s, num_jobs)).tolist()
    cluster = Cluster(num_gpus)
    valid_until_s, number = math.inf, 0
    for _ in range(200 * num_jobs):
        arrival_s = arrivals_s[number] if number < num_jobs else math.inf
        at_s = min(arrival_s, valid_until_s, cluster.next_finish_s())
        if math.isinf(at_s):
            return cluster
        cluster.advance(at_s)
        arriving = None
        if at_s == arrival_s:
            arriving, number = random_job(rng, number, at_s, num_gpus), number + 1
        valid_until_s = cluster.schedule(arriving).valid_until_s
    raise AssertionError(f"seed {seed}: the simulation does not come to an end")


@pytest.mark.parametrize("seed", range(20))
def test_every_admitted_job_ends_by_its_deadline(seed: int) -> None:
    num_gpus = (4, 8, 12, 16, 64)[seed % 5]
    cluster = simulate(seed, num_gpus, num_jobs=60, mean_gap_s=2000 / num_gpus)
    late = {
        job_id: cluster.finished_s[job_id] - deadline_s
        for job_id, deadline_s in cluster.deadline_s.items()
        if cluster.finished_s[job_id] > deadline_s + TIME_TOLERANCE_S
    }
    assert not late, f"seed {seed}"
    assert len(cluster.finished_s) == 60, "jobs without a promise are finished too"
    assert cluster.num_refused > 0, "the load is too low to prove anything"
    assert len(cluster.deadline_s) > 0


@pytest.mark.parametrize("seed", range(3))
def test_quoted_deadlines_are_accepted_at_once_and_tight(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = AdmissionPlan.build([], 16, 0.0)
    num_quotes, num_tight = 0, 0
    for number in range(60):
        job = random_job(rng, number, 0.0, 16)
        quoted_s = plan.earliest_deadline_s(job)
        if quoted_s is not None:
            assert plan.admit(replace(job, deadline_s=quoted_s)) is not None
            num_quotes += 1
            num_tight += plan.admit(replace(job, deadline_s=quoted_s - 1.0)) is None
        plan = plan.admit(job) or plan
    assert num_quotes > 40
    assert num_tight >= 0.95 * num_quotes  # greedy filling is not monotone in the deadline, but nearly so
