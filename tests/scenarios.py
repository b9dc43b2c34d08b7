"""Pools and wishes for the virtual cluster, drawn from a seed; and a monitor that only knows silence and progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shared.messages import lifecycle
from shared.messages.cluster import PoolConfig
from shared.messages.commands import CancelJob, SubmitJob
from shared.messages.events import JobProgressed, NodeLost, NodeReported, WorkerReport
from shared.messages.job import JobClass, JobSpec
from shared.messages.policy import Policy
from shared.messages.pool_state import PoolState
from simulator.cluster import Arrival, Scenario
from simulator.physics import Physics

CURVES: Mapping[str, Mapping[int, float]] = {
    "m0/b256": {1: 10.0, 2: 18.0, 4: 30.0, 8: 40.0, 16: 44.0},
    "m1/b256": {1: 5.0, 2: 9.5, 4: 18.0, 8: 32.0, 16: 50.0},
    "m2/b256": {1: 20.0, 2: 25.0, 4: 27.0, 8: 26.0, 16: 20.0},  # more GPUs make it slower
}
CLASSES = (JobClass.SLO, JobClass.SLO, JobClass.SLO, JobClass.SOFT, JobClass.BEST_EFFORT)


def random_scenario(seed: int, *, num_jobs: int = 12, curves_known: bool = True) -> Scenario:
    """Jobs that arrive some seconds apart, with deadlines from impossible to easy; one of them is cancelled."""
    chance = np.random.default_rng([seed, num_jobs])
    arrivals: list[Arrival] = []
    at_s = 1.0
    for number in range(num_jobs):
        at_s += float(chance.exponential(6.0))
        arrivals.append(Arrival(at_s=at_s, command=_random_wish(chance, number)))
    cancelled = arrivals[int(chance.integers(num_jobs))]
    cancel = CancelJob(job_id=cancelled.command.job_id, tenant="lab")
    arrivals.append(Arrival(at_s=cancelled.at_s + float(chance.exponential(10.0)), command=cancel))
    return Scenario(
        num_gpus_by_node={"a": 4, "b": 4, "c": 4, "d": 4},
        config=PoolConfig(curves=CURVES if curves_known else {}, stop_free=True),
        physics=Physics(true_curves=CURVES),
        arrivals=tuple(arrivals),
        num_replicas={"admission": 2, "allocator": 2, "placement": 2},  # no lease keeps any of them silent
    )


def _random_wish(chance: np.random.Generator, number: int) -> SubmitJob:
    model = int(chance.integers(len(CURVES)))
    job_class = CLASSES[int(chance.integers(len(CLASSES)))]
    iterations = int(chance.integers(50, 800))
    alone_s = iterations / CURVES[f"m{model}/b256"][1]
    spec = JobSpec(
        training_function="examples.digits:Digits",
        model_name=f"m{model}",
        global_batch_size=256,
        max_iterations=iterations,
        job_class=job_class,
        deadline_in_s=None
        if job_class is JobClass.BEST_EFFORT
        else float(alone_s * chance.uniform(0.1, 2.0) + 10.0),
    )
    return SubmitJob(job_id=f"job-{number:02}", tenant="lab", spec=spec)


# --- a monitor ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """An incarnation of a node, and when it was last heard."""

    incarnation: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the monitor knows beside the ledger."""

    pool: PoolState
    seen: Mapping[str, Sighting] = field(default_factory=dict)  # by node
    reports: Mapping[str, WorkerReport] = field(default_factory=dict)  # of rank 0, by job


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """Action and note at once: from now on this incarnation is listened for."""

    node_id: str
    incarnation: str


PROGRESS_EVERY_S = 2.0


def _observe(watch: Watch, note: Any, now_s: float) -> Watch:
    sighting = Sighting(incarnation=note.incarnation, at_s=now_s)
    watch = replace(watch, seen={**watch.seen, note.node_id: sighting})
    if isinstance(note, NodeReported):
        leaders = {worker.job_id: worker for worker in note.workers if worker.rank == 0}
        watch = replace(watch, reports={**watch.reports, **leaders})
    return watch


def _decide(watch: Watch, commands: object, now_s: float) -> tuple[Any, ...]:
    outputs: list[Any] = []
    for node in sorted(watch.pool.nodes.values(), key=lambda node: node.node_id):
        seen = watch.seen.get(node.node_id)
        if seen is None or seen.incarnation != node.incarnation:
            outputs.append(Noticed(node_id=node.node_id, incarnation=node.incarnation))
        elif node.alive and now_s >= seen.at_s + watch.pool.config.heartbeat_timeout_s:
            lost = NodeLost(node_id=node.node_id, incarnation=node.incarnation, reason="silent", at_s=now_s)
            outputs.append(lost)
    for job in sorted(watch.pool.live_jobs.values(), key=lambda job: job.job_id):
        report = watch.reports.get(job.job_id)
        due = job.training_generation is not None and now_s >= job.progressed_at_s + PROGRESS_EVERY_S
        if due and report is not None and report.generation == job.training_generation:
            outputs.append(
                JobProgressed(
                    job_id=job.job_id,
                    generation=report.generation,
                    iteration=report.iteration,
                    iterations_per_s=report.iterations_per_s,
                    checkpoint_iteration=report.checkpoint_iteration,
                    at_s=now_s,
                )
            )
    return tuple(outputs)


def _wake_at_s(watch: Watch) -> float | None:
    alive = {node.node_id: node.incarnation for node in watch.pool.nodes.values() if node.alive}
    last_heard = [seen.at_s for node_id, seen in watch.seen.items() if alive.get(node_id) == seen.incarnation]
    return min(last_heard, default=None) and min(last_heard) + watch.pool.config.heartbeat_timeout_s


QUIET_MONITOR = Policy(
    service="monitor",
    start=lambda pool: Watch(pool=pool),
    pool=lambda watch: watch.pool,
    evolve=lambda watch, message, sequence: replace(
        watch, pool=lifecycle.evolve(watch.pool, message, sequence)
    ),
    observe=_observe,
    decide=_decide,
    wake_at_s=_wake_at_s,
)
