"""Pools and commands for the virtual cluster, drawn from a seed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from elasticflow.services.monitor.policy import POLICY as MONITOR
from elasticflow.shared.messages.commands import CancelJob, SubmitJob
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.policy import Policy
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario
from elasticflow.simulator.pipeline.virtual_workers import TimingModel

CURVES: Mapping[str, Mapping[int, float]] = {
    "m0/b256": {1: 10.0, 2: 18.0, 4: 30.0, 8: 40.0, 16: 44.0},
    "m1/b256": {1: 5.0, 2: 9.5, 4: 18.0, 8: 32.0, 16: 50.0},
    "m2/b256": {1: 20.0, 2: 25.0, 4: 27.0, 8: 26.0, 16: 20.0},  # more GPUs make it slower
}
CLASSES = (JobClass.SLO, JobClass.SLO, JobClass.SLO, JobClass.SOFT, JobClass.BEST_EFFORT)


def random_scenario(
    seed: int,
    *,
    num_jobs: int = 12,
    num_nodes: int = 4,
    max_iterations: int = 800,
    mean_gap_s: float = 6.0,
    curves_known: bool = True,
) -> Scenario:
    """Jobs that arrive some seconds apart, with deadlines from impossible to easy; one of them is cancelled."""
    chance = np.random.default_rng([seed, num_jobs])
    arrivals: list[Arrival] = []
    at_s = 1.0
    for number in range(num_jobs):
        at_s += float(chance.exponential(mean_gap_s))
        arrivals.append(Arrival(at_s=at_s, command=_random_submission(chance, number, max_iterations)))
    cancelled = arrivals[int(chance.integers(num_jobs))]
    cancel = CancelJob(job_id=cancelled.command.job_id, tenant="lab")
    arrivals.append(Arrival(at_s=cancelled.at_s + float(chance.exponential(10.0)), command=cancel))
    return Scenario(
        num_gpus_by_node=dict.fromkeys("abcd"[:num_nodes], 4),
        # a thousand: here the test, not a job, ends the nodes
        config=PoolConfig(curves=CURVES if curves_known else {}, stop_free=True, max_nodes_lost_at_start=1000),
        timing_model=TimingModel(true_curves=CURVES),
        arrivals=tuple(arrivals),
        num_replicas={"admission": 2, "allocator": 2, "placement": 2},
    )


def _random_submission(chance: np.random.Generator, number: int, max_iterations: int) -> SubmitJob:
    model = int(chance.integers(len(CURVES)))
    job_class = CLASSES[int(chance.integers(len(CLASSES)))]
    iterations = int(chance.integers(50, max_iterations))
    alone_s = iterations / CURVES[f"m{model}/b256"][1]
    spec = JobSpec(
        training_function="examples.digits:Digits",
        model_name=f"m{model}",
        global_batch_size=256,
        max_iterations=iterations,
        job_class=job_class,
        deadline_in_s=None if job_class is JobClass.BEST_EFFORT else float(alone_s * chance.uniform(0.1, 2.0) + 10.0),
    )
    return SubmitJob(job_id=f"job-{number:02}", tenant="lab", spec=spec)


def services() -> tuple[Policy[Any], ...]:
    """The policies of all services but the executor, new."""
    return (*planners().values(), MONITOR)
