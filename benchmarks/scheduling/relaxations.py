"""Asked again from the same state with less to ask: does `first-come` ever turn a yes into a no?

Instants of crowded simulations, wishes of their own jobs there, due between the earliest end in an empty pool and the
earliest that moves nobody. Those that are promised are asked again with more time, less work, more GPUs
(docs/adr/0017).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.scheduling.loaded_pool import SEED
from benchmarks.scheduling.quality import OVERHEAD
from benchmarks.scheduling.workloads import cluster_of
from shared.messages.events import JobAdmitted, JobRejected, PlanEvent
from shared.messages.fold_curves import with_range
from shared.messages.job import JobSpec
from shared.messages.pool_state import PoolState
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.insistence import Insistence
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.outlook import known_curve, newcomer
from shared.scheduling.planned_pool import planned_pool
from shared.scheduling.quoting import earliest_deadline_around_s, earliest_end_alone_s
from simulator.trace_driven.trial import Trial
from simulator.workload.generator import Recipe, generate
from simulator.workload.throughputs import Throughputs

SIZES = (8, 16, 32, 64)  # GPUs of the pools
LOAD = 3.0

Law = tuple[str, SchedulableJob, int]  # what is relaxed, the wish then, GPUs more


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
    """Of so many wishes in each pool, which so many jobs ask to come into, those for whom others must move."""
    chance = np.random.default_rng(SEED)
    asked, refused = dict[str, int](), dict[str, int]()
    num_wishes = num_promised = 0
    for num_gpus in SIZES:
        for plan, wish in _wishes(known, num_gpus, count, num_jobs, chance):
            num_wishes += 1
            if Insistence(plan()).propose(wish) is None:
                continue
            num_promised += 1
            for law, relaxed, more_gpus in _relaxed(wish, plan().now_s, num_gpus, chance):
                asked[law] = asked.get(law, 0) + 1
                is_refused = Insistence(plan(more_gpus)).propose(relaxed) is None
                refused[law] = refused.get(law, 0) + is_refused
    return {
        "num_gpus": list(SIZES),
        "jobs": num_jobs,
        "load": LOAD,
        "wishes": num_wishes,
        "promised": num_promised,
        "laws": [{"relaxed": law, "asked": asked[law], "refused": refused[law]} for law in asked],
    }


@dataclass(frozen=True, slots=True)
class _Plan:
    """The promises at an instant, laid out on the GPUs there are or on more, as they stand."""

    state: PoolState
    now_s: float

    def __call__(self, more_gpus: int = 0) -> AdmissionPlan:
        plan = planned_pool(self.state, self.now_s).plan
        return AdmissionPlan(plan.table, plan.promised, plan.num_gpus + more_gpus, self.now_s)


def _wishes(
    known: Throughputs, num_gpus: int, count: int, num_jobs: int, chance: np.random.Generator
) -> Iterator[tuple[_Plan, SchedulableJob]]:
    """Jobs of the pool at other instants of it, due when somebody has to move for them."""
    recipe = Recipe(num_jobs=num_jobs, cluster_gpus=num_gpus, load=LOAD)
    instants = _Instants()
    workload, cluster = generate(recipe, known, SEED, "generated load"), cluster_of(num_gpus)
    trial = Trial(workload=workload, cluster=cluster, policy="first-come", overhead=OVERHEAD)
    trial.simulation(instants).run()
    for _ in range(count):
        state, _, now_s = instants.seen[chance.integers(len(instants.seen))]
        spec = instants.seen[chance.integers(len(instants.seen))][1]
        state = with_range(state, spec)
        curve = known_curve(state, spec)
        if curve is None:
            continue
        plan, wish = _Plan(state, now_s), newcomer(state, "wish", spec, curve, math.inf)
        alone_s, around_s = earliest_end_alone_s(plan(), wish), earliest_deadline_around_s(plan(), wish)
        if alone_s is not None and around_s is not None and around_s - alone_s > 1.0:
            window_s = np.exp(chance.uniform(np.log(alone_s - now_s), np.log(around_s - now_s)))
            yield plan, replace(wish, deadline_s=now_s + float(window_s))


def _relaxed(wish: SchedulableJob, now_s: float, num_gpus: int, chance: np.random.Generator) -> Iterator[Law]:
    """One after another: one second more, a thousandth less, one GPU more; and so on, up to much."""
    window_s, iterations = wish.deadline_s - now_s, wish.remaining_iterations
    some, much = chance.random(2).tolist()
    for later_s in (1.0, 0.2 * some * window_s, 3.0 * much * window_s):
        yield "deadline", replace(wish, deadline_s=wish.deadline_s + later_s), 0
    for part in (0.999, 1.0 - 0.2 * some, 1.0 - much):
        yield "work", replace(wish, remaining_iterations=part * iterations), 0
    for more_gpus in (1, 1 + int(8 * some), num_gpus):
        yield "GPUs", wish, more_gpus
