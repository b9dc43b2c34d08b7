"""Whether admission rejects an easier job in a state in which it admits a harder one.

At instants of crowded simulations it submits jobs of the same workload. Their deadlines lie between the earliest end
in an empty pool and the earliest that moves no other job. It submits each admitted job again with more time, with less
work and on more GPUs (docs/adr/0017, 0030).
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from benchmarks.scheduling.pools import SEED
from benchmarks.scheduling.quality import OVERHEAD
from benchmarks.scheduling.workloads import cluster_of
from elasticflow.shared.messages.events import JobAdmitted, JobRejected, PlanEvent
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_pricing import AdmissionPricing
from elasticflow.shared.scheduling.admission.admission_search import (
    AdmissionSearch,
    earliest_deadline_around_s,
    earliest_end_alone_s,
)
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.nodes import PromisableGpus
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs

SIZES = (8, 16, 32, 64)  # GPUs of the pools
LOAD = 3.0
POLICIES = ("first-come", "selective")

Law = Literal["deadline", "work", "GPUs"]
"""What is relaxed."""


@dataclass(slots=True)
class _Instants:
    """Collects the states in which a job was judged, and what it was."""

    seen: list[tuple[PoolState, JobSpec, float]] = field(default_factory=list)

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        self.seen += [
            (before, event.spec, now_s)
            for event in events
            if isinstance(event, JobAdmitted | JobRejected) and event.spec is not None
        ]


def measure_relaxations(known: Throughputs, count: int, num_jobs: int) -> dict[str, Any]:
    """Measure the requests that need other jobs to move, of `count` in each pool of `num_jobs` jobs."""
    return {
        "num_gpus": list(SIZES),
        "jobs": num_jobs,
        "load": LOAD,
        "policies": [_asked_again(known, count, num_jobs, policy) for policy in POLICIES],
    }


def _asked_again(known: Throughputs, count: int, num_jobs: int, policy: str) -> dict[str, Any]:
    chance = np.random.default_rng(SEED)
    asked, refused = Counter[Law](), Counter[Law]()
    num_requests = num_promised = 0
    for num_gpus in SIZES:
        for pool, candidate in _requests(known, num_gpus, count, num_jobs, policy, chance):
            num_requests += 1
            if not pool.promises(candidate):
                continue
            num_promised += 1
            for law, relaxed, more_gpus in _relaxed(candidate, pool.now_s, num_gpus, chance):
                asked[law] += 1
                refused[law] += not pool.promises(relaxed, more_gpus)
    laws = [{"relaxed": law, "asked": asked[law], "refused": refused[law]} for law in asked]
    return {"policy": policy, "requests": num_requests, "promised": num_promised, "laws": laws}


@dataclass(frozen=True, slots=True)
class _Pool:
    """The promises at an instant, laid out on the GPUs there are or on more, as they stand."""

    state: PoolState
    now_s: float

    def plan(self, more_gpus: int = 0) -> AdmissionPlan:
        plan = planned_pool(self.state, self.now_s).plan
        plan.table.set_moves(())
        return AdmissionPlan(plan.table, plan.promised, PromisableGpus(plan.num_gpus + more_gpus), self.now_s)

    def promises(self, candidate: SchedulableJob, more_gpus: int = 0) -> bool:
        plan = self.plan(more_gpus)
        if self.state.config.admission == "selective":
            selection = AdmissionPricing(self.state.demand, (), self.now_s, plan)
            if selection.is_overpriced(candidate):
                return False
        return AdmissionSearch(plan).fits(candidate)


def _requests(
    known: Throughputs,
    num_gpus: int,
    count: int,
    num_jobs: int,
    policy: str,
    chance: np.random.Generator,
) -> Iterator[tuple[_Pool, SchedulableJob]]:
    """Jobs of the pool at other instants of it, due so that another job has to move for them."""
    recipe = Recipe(num_jobs=num_jobs, cluster_gpus=num_gpus, load=LOAD)
    instants = _Instants()
    workload, cluster = generate(recipe, known, SEED, "generated load"), cluster_of(num_gpus)
    simulated_run = SimulatedRun(workload=workload, cluster=cluster, policy=policy, overhead=OVERHEAD)
    simulated_run.simulation(instants).run()
    for _ in range(count):
        state, _, now_s = instants.seen[chance.integers(len(instants.seen))]
        spec = instants.seen[chance.integers(len(instants.seen))][1]
        state = with_profile(state, spec)
        curve = known_curve(state, spec)
        if curve is None:
            continue
        pool, candidate = _Pool(state, now_s), arriving_job(state, "candidate", spec, curve, math.inf)
        plan = pool.plan()
        alone_s, around_s = earliest_end_alone_s(plan, candidate), earliest_deadline_around_s(plan, candidate)
        if alone_s is not None and around_s is not None and around_s - alone_s > 1.0:
            window_s = np.exp(chance.uniform(np.log(alone_s - now_s), np.log(around_s - now_s)))
            yield pool, replace(candidate, deadline_s=now_s + float(window_s))


def _relaxed(
    candidate: SchedulableJob, now_s: float, num_gpus: int, chance: np.random.Generator
) -> Iterator[tuple[Law, SchedulableJob, int]]:
    """What is relaxed, the candidate then, and GPUs more: one second more, a thousandth less, one GPU more; up to
    much.
    """
    window_s, iterations = candidate.deadline_s - now_s, candidate.remaining_iterations
    some, much = chance.random(2).tolist()
    for later_s in (1.0, 0.2 * some * window_s, 3.0 * much * window_s):
        yield "deadline", replace(candidate, deadline_s=candidate.deadline_s + later_s), 0
    for part in (0.999, 1.0 - 0.2 * some, 1.0 - much):
        yield "work", replace(candidate, remaining_iterations=part * iterations), 0
    for more_gpus in (1, 1 + int(8 * some), num_gpus):
        yield "GPUs", candidate, more_gpus
