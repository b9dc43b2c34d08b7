"""Asked again from the same state with less to ask: does a yes ever turn into a no?

Instants of crowded simulations, wishes of their own jobs there, due between the earliest end in an empty pool and the
earliest that moves nobody. Those that are promised are asked again with more time, less work, more GPUs
(docs/adr/0017, 0030).
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
from shared.scheduling.selection import Selection
from simulator.trace_driven.trial import Trial
from simulator.workload.generator import Recipe, generate
from simulator.workload.throughputs import Throughputs

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
    """Of so many wishes in each pool, which so many jobs ask to come into, those for whom others must move."""
    return {
        "num_gpus": list(SIZES),
        "jobs": num_jobs,
        "load": LOAD,
        "policies": [_asked_again(known, count, num_jobs, policy) for policy in POLICIES],
    }


def _asked_again(known: Throughputs, count: int, num_jobs: int, policy: str) -> dict[str, Any]:
    chance = np.random.default_rng(SEED)
    asked, refused = Counter[Law](), Counter[Law]()
    num_wishes = num_promised = 0
    for num_gpus in SIZES:
        for pool, wish in _wishes(known, num_gpus, count, num_jobs, policy, chance):
            num_wishes += 1
            if not pool.promises(wish):
                continue
            num_promised += 1
            for law, relaxed, more_gpus in _relaxed(wish, pool.now_s, num_gpus, chance):
                asked[law] += 1
                refused[law] += not pool.promises(relaxed, more_gpus)
    laws = [{"relaxed": law, "asked": asked[law], "refused": refused[law]} for law in asked]
    return {"policy": policy, "wishes": num_wishes, "promised": num_promised, "laws": laws}


@dataclass(frozen=True, slots=True)
class _Pool:
    """The promises at an instant, laid out on the GPUs there are or on more, as they stand."""

    state: PoolState
    now_s: float

    def plan(self, more_gpus: int = 0) -> AdmissionPlan:
        plan = planned_pool(self.state, self.now_s).plan
        return AdmissionPlan(plan.table, plan.promised, plan.num_gpus + more_gpus, self.now_s)

    def promises(self, wish: SchedulableJob, more_gpus: int = 0) -> bool:
        plan = self.plan(more_gpus)
        if self.state.config.admission == "selective":
            selection = Selection(self.state.demand, (), self.now_s, plan.num_gpus)
            if selection.is_too_dear(wish, plan.profile):
                return False
        return Insistence(plan).has_room_for(wish)


def _wishes(
    known: Throughputs,
    num_gpus: int,
    count: int,
    num_jobs: int,
    policy: str,
    chance: np.random.Generator,
) -> Iterator[tuple[_Pool, SchedulableJob]]:
    """Jobs of the pool at other instants of it, due when somebody has to move for them."""
    recipe = Recipe(num_jobs=num_jobs, cluster_gpus=num_gpus, load=LOAD)
    instants = _Instants()
    workload, cluster = generate(recipe, known, SEED, "generated load"), cluster_of(num_gpus)
    trial = Trial(workload=workload, cluster=cluster, policy=policy, overhead=OVERHEAD)
    trial.simulation(instants).run()
    for _ in range(count):
        state, _, now_s = instants.seen[chance.integers(len(instants.seen))]
        spec = instants.seen[chance.integers(len(instants.seen))][1]
        state = with_range(state, spec)
        curve = known_curve(state, spec)
        if curve is None:
            continue
        pool, wish = _Pool(state, now_s), newcomer(state, "wish", spec, curve, math.inf)
        plan = pool.plan()
        alone_s, around_s = earliest_end_alone_s(plan, wish), earliest_deadline_around_s(plan, wish)
        if alone_s is not None and around_s is not None and around_s - alone_s > 1.0:
            window_s = np.exp(chance.uniform(np.log(alone_s - now_s), np.log(around_s - now_s)))
            yield pool, replace(wish, deadline_s=now_s + float(window_s))


def _relaxed(
    wish: SchedulableJob, now_s: float, num_gpus: int, chance: np.random.Generator
) -> Iterator[tuple[Law, SchedulableJob, int]]:
    """What is relaxed, the wish then, and GPUs more: one second more, a thousandth less, one GPU more; up to much."""
    window_s, iterations = wish.deadline_s - now_s, wish.remaining_iterations
    some, much = chance.random(2).tolist()
    for later_s in (1.0, 0.2 * some * window_s, 3.0 * much * window_s):
        yield "deadline", replace(wish, deadline_s=wish.deadline_s + later_s), 0
    for part in (0.999, 1.0 - 0.2 * some, 1.0 - much):
        yield "work", replace(wish, remaining_iterations=part * iterations), 0
    for more_gpus in (1, 1 + int(8 * some), num_gpus):
        yield "GPUs", wish, more_gpus
