"""No admitted job ends late, on a virtual clock that charges every resize exactly: in fractions, nothing forgiven."""

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pytest

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_search import AdmissionSearch
from elasticflow.shared.scheduling.allocation.allocation import Allocation, RowsWithoutPromise, allocate
from elasticflow.shared.scheduling.jobs.job_table import JobTable, SchedulableJob, Schedule
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.state.nodes import PromisableGpus
from tests.support.admission_plans import admit
from tests.support.rings import few_daily

NOW_S = 1_800_000_000.0  # where floats lie 2.4e-7 s apart


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
        resize_cost=ResizeCost.flat(float(rng.choice([0.0, 3.0, 15.0, 60.0]))),
    )


@dataclass
class Running:
    """A job in the world: what is really left of it, and since when it really trains."""

    job: SchedulableJob
    left: Fraction
    num_gpus: int = 0
    ready_s: Fraction = Fraction(0)

    def rate(self) -> Fraction:
        return Fraction(self.job.curve.throughput(self.num_gpus))

    def end_s(self, now_s: Fraction) -> Fraction | None:
        rate = self.rate()
        return max(now_s, self.ready_s) + self.left / rate if rate else None

    def seen(self) -> SchedulableJob:
        """As the scheduler receives it, in floats."""
        return replace(
            self.job,
            remaining_iterations=float(self.left),
            current_num_gpus=self.num_gpus,
            stalled_until_s=float(self.ready_s) if self.num_gpus else -math.inf,
        )


@dataclass
class Cluster:
    """The world of the simulation: jobs that advance exactly, and the scheduler that steers them."""

    num_gpus: int
    now_s: Fraction = Fraction(NOW_S)
    promised: dict[str, Running] = field(default_factory=dict[str, Running])
    opportunistic: dict[str, Running] = field(default_factory=dict[str, Running])
    kept: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    finished_s: dict[str, Fraction] = field(default_factory=dict[str, Fraction])
    deadline_s: dict[str, float] = field(default_factory=dict[str, float])
    num_refused: int = 0
    num_resizes: int = 0

    def advance(self, to_s: Fraction) -> None:
        """Let every job train until `to_s`; who ends by then gives back its GPUs."""
        for jobs in (self.promised, self.opportunistic):
            for job_id, running in list(jobs.items()):
                ends_s = running.end_s(self.now_s)
                if ends_s is not None and ends_s <= to_s:
                    self.finished_s[job_id] = ends_s
                    del jobs[job_id]
                    continue
                worked_s = max(Fraction(0), to_s - max(self.now_s, running.ready_s))
                running.left -= running.rate() * worked_s
        self.now_s = to_s

    def next_end_s(self) -> Fraction | None:
        ends_s = (running.end_s(self.now_s) for running in (*self.promised.values(), *self.opportunistic.values()))
        return min((end_s for end_s in ends_s if end_s is not None), default=None)

    def schedule(self, arriving: SchedulableJob | None) -> Allocation:
        """One decision: plan, admit, allocate, and resize the jobs accordingly."""
        plan, others = self._planned()
        assert plan.late_jobs == ()
        if arriving is not None:
            if admit(plan, arriving):
                self.promised[arriving.job_id] = Running(arriving, Fraction(arriving.remaining_iterations))
                self.deadline_s[arriving.job_id] = arriving.deadline_s
            else:
                self.num_refused += 1
                without = replace(arriving, deadline_s=math.inf)
                self.opportunistic[arriving.job_id] = Running(without, Fraction(arriving.remaining_iterations))
                others.append(plan.append(without))
        allocation = allocate(plan, RowsWithoutPromise(others))
        assert sum(allocation.num_gpus_by_job.values()) <= self.num_gpus
        self.kept = plan.schedules
        for running in (*self.promised.values(), *self.opportunistic.values()):
            self._resize(running, allocation.num_gpus_by_job[running.job.job_id])
        return allocation

    def _planned(self) -> tuple[AdmissionPlan, list[int]]:
        promised, others = self.promised.values(), self.opportunistic.values()
        table = JobTable.of(running.seen() for running in (*promised, *others))
        for row, running in enumerate(promised):
            kept = self.kept[running.job.job_id]
            table.write_schedule(row, [number for segment in kept for number in segment])
        plan = AdmissionPlan(table, range(len(promised)), PromisableGpus(self.num_gpus), float(self.now_s))
        return plan, list(range(len(promised), table.num_jobs))

    def _resize(self, running: Running, num_gpus: int) -> None:
        if num_gpus != running.num_gpus:
            running.num_gpus = num_gpus
            running.ready_s = self.now_s + Fraction(running.job.resize_cost.seconds(num_gpus))
            self.num_resizes += num_gpus > 0


def next_float(at_s: Fraction) -> Fraction:
    """The first instant from then on that the scheduler can be told."""
    near = float(at_s)
    return Fraction(near if near >= at_s else math.nextafter(near, math.inf))


def simulate(seed: int, num_gpus: int, num_jobs: int, mean_gap_s: float) -> Cluster:
    rng = np.random.default_rng(seed)
    arrivals_s = [Fraction(NOW_S + gap_s) for gap_s in np.cumsum(rng.exponential(mean_gap_s, num_jobs)).tolist()]
    cluster = Cluster(num_gpus)
    valid_until_s: Fraction | None = None
    number = 0
    for _ in range(200 * num_jobs):
        arrival_s = arrivals_s[number] if number < num_jobs else None
        ends_s = cluster.next_end_s()
        instants_s = (arrival_s, valid_until_s, None if ends_s is None else next_float(ends_s))
        at_s = min((instant_s for instant_s in instants_s if instant_s is not None), default=None)
        if at_s is None:
            return cluster
        cluster.advance(at_s)
        arriving = None
        if at_s == arrival_s:
            arriving, number = random_job(rng, number, float(at_s), num_gpus), number + 1
        valid_s = cluster.schedule(arriving).valid_until_s
        valid_until_s = None if math.isinf(valid_s) else Fraction(valid_s)
    raise AssertionError(f"seed {seed}: the simulation does not come to an end")


@pytest.mark.parametrize("seed", few_daily(range(20), 8))
def test_every_admitted_job_ends_by_its_deadline(seed: int) -> None:
    num_gpus = (4, 8, 12, 16, 64)[seed % 5]
    cluster = simulate(seed, num_gpus, num_jobs=60, mean_gap_s=2000 / num_gpus)
    late_s = {
        job_id: float(cluster.finished_s[job_id] - Fraction(deadline_s))
        for job_id, deadline_s in cluster.deadline_s.items()
        if cluster.finished_s[job_id] > deadline_s
    }
    assert not late_s, f"seed {seed}"
    assert len(cluster.finished_s) == 60, "jobs without a promise are finished too"
    assert cluster.num_refused > 0, "the load is too low to prove anything"
    assert len(cluster.deadline_s) > 0


@pytest.mark.parametrize("seed", range(3))
def test_quoted_deadlines_are_accepted_at_once_and_a_second_less_is_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = AdmissionPlan.build([], 16, 0.0)
    num_quotes = 0
    for number in range(60):
        job = random_job(rng, number, 0.0, 16)
        search = AdmissionSearch(plan)
        quoted_s = search.earliest_deadline_s(job)
        if quoted_s is not None:
            assert search.propose(replace(job, deadline_s=quoted_s)) is not None
            assert search.propose(replace(job, deadline_s=quoted_s - 1.0)) is None
            num_quotes += 1
        admit(plan, job)
    assert num_quotes > 40
