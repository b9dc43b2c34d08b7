"""Simulated runs of a whole pool until it is at rest, the checks that hold for each, and scenarios from a seed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from elasticflow.services.monitor.policy import POLICY as MONITOR
from elasticflow.shared.messages.commands import CancelJob, SubmitJob
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus.contract import DEFAULT_TIMEOUT_S
from elasticflow.shared.runtime.service.decision_problems import LEAST_SLACK_S
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.state.policy import Policy
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import (
    MANY_FAULTS,
    NO_FAULTS,
    START_S,
    Arrival,
    Faults,
    Scenario,
    VirtualCluster,
)
from elasticflow.simulator.pipeline.invariants import (
    acknowledged_early,
    decided_on_wrong_clocks,
    decided_over_unreadable,
    violations,
)
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from elasticflow.simulator.replay.recorded_ledger import checked_chain, folded
from elasticflow.simulator.replay.retaken_decisions import verify

# --- pools and commands, drawn from a seed -------------------------------------------------------------


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


# --- runs until a pool is at rest ----------------------------------------------------------------------


REACTION_S = 2 * DEFAULT_TIMEOUT_S + 2.0  # even if two appends in a row are lost
LONGEST_S = 3_600.0  # virtual; a pool that is not at rest by then never will be
STORM = replace(MANY_FAULTS, until_s=200.0)
POWER_STORM = replace(STORM, power_loss_every_s=60.0, damaged_file_every_s=15.0)
SHORT_STORM = replace(  # each kind of fault two to six times as often as in a storm, for a tenth of the time
    MANY_FAULTS,
    worker_crash_every_s=7.0,
    node_crash_every_s=10.0,
    partition_every_s=10.0,
    executor_restart_every_s=10.0,
    service_restart_every_s=2.0,
    service_partition_every_s=10.0,
    one_way_partition_every_s=10.0,
    node_pause_every_s=10.0,
    service_pause_every_s=10.0,
    clock_step_every_s=5.0,
    power_loss_every_s=18.0,
    damaged_file_every_s=4.0,
    max_outage_s=8.0,
    until_s=18.0,
)
UPGRADE = replace(SHORT_STORM, upgrade_within_s=18.0)


def run_to_rest(
    scenario: Scenario,
    seed: int,
    faults: Faults = NO_FAULTS,
    *,
    longest_s: float = LONGEST_S,
    make_host: Callable[..., Host[Any]] = Host,
) -> VirtualCluster:
    """A pool from its first message until it is at rest, all absent nodes are back, and each replica has read all."""
    with VirtualCluster(scenario, services, seed=seed, faults=faults, make_host=make_host) as cluster:
        settle(cluster, faults, longest_s=longest_s)
    return cluster


def settle(cluster: VirtualCluster, faults: Faults = NO_FAULTS, *, longest_s: float = LONGEST_S) -> None:
    """Run a pool until it is at rest, all absent nodes are back, and each replica has read all."""
    cluster.run(longest_s)
    last_fault_s = min(faults.until_s, cluster.loop.now_s - START_S)
    cluster.run_for(max(0.0, START_S + last_fault_s + faults.max_outage_s - cluster.loop.now_s))

    def all_have_read_all() -> bool:
        end = len(cluster.entries)
        return all(replica.folded.sequence == end for replica in cluster.replicas)

    num_entries = -1
    while num_entries < len(cluster.entries):  # the last event may call for a decision
        num_entries = len(cluster.entries)
        cluster.run_for(REACTION_S)
        cluster.run_for(longest_s, all_have_read_all)


def short_storm(seed: int, make_host: Callable[..., Host[Any]] = Host, faults: Faults | None = None) -> VirtualCluster:
    """A small pool in many faults: it costs a fifth of a storm, so that many seeds can be tried.

    faults: by default a storm, during which every third pool is upgraded.
    """
    if faults is None:
        faults = SHORT_STORM if seed % 3 else UPGRADE
    scenario = random_scenario(
        seed, num_jobs=3, num_nodes=2, max_iterations=200, mean_gap_s=3.0, curves_known=seed % 2 == 0
    )
    if faults.damaged_file_every_s is not None:  # in so short a time there would be few files
        often = replace(scenario.timing_model, checkpoint_every_s=1.0, snapshot_every=10)
        scenario = replace(scenario, timing_model=often)
    return run_to_rest(scenario, seed, faults, longest_s=600.0, make_host=make_host)


def problems(cluster: VirtualCluster) -> Iterator[str]:
    """What is wrong with a run that should be at rest, a sentence each, with the invariant that it breaks."""
    for name, broken_in in INVARIANTS.items():
        yield from (f"{name}: {problem}" for problem in broken_in(cluster))


def not_at_rest(cluster: VirtualCluster) -> Iterator[str]:
    """Jobs without an end, and workers without a job."""
    commands = [arrival.command for arrival in cluster.scenario.arrivals]
    submitted = {command.job_id for command in commands if isinstance(command, SubmitJob)}
    yield from (f"{job_id} has no end" for job_id in sorted(submitted - set(cluster.state.ended_jobs)))
    yield from (f"{job_id} was never submitted" for job_id in set(cluster.state.ended_jobs) - submitted)
    yield from (f"{job_id} is alive" for job_id in cluster.state.live_jobs)
    if cluster.environment.num_processes:
        yield f"{cluster.environment.num_processes} workers run"


def decided_otherwise(cluster: VirtualCluster) -> Iterator[str]:
    """The decision that the same policies do not take again on the same history."""
    entries = cluster.entries
    verification = verify(entries, planners())
    if verification.difference is not None:
        yield f"decided otherwise: {verification.difference}"
        return
    num_decisions = sum(isinstance(entry.message, PlanDecided) for entry in entries)
    if verification.num_verified + verification.num_given != num_decisions:
        yield f"{num_decisions} decisions, of which {verification.num_verified} were verified"


def differing_replicas(cluster: VirtualCluster) -> Iterator[str]:
    """Replicas whose state differs from the folded ledger, and decisions that are due and were not taken."""
    rebuilt, now_s = folded(cluster.entries), cluster.loop.now_s
    for replica in cluster.replicas:
        if replica.folded != rebuilt:
            yield f"{replica.name} has another state than the ledger"
    for service, policy in planners().items():
        if policy.decide(rebuilt, (), now_s):
            yield f"{service} has not decided what is due"


INVARIANTS: Mapping[str, Callable[[VirtualCluster], Iterable[str]]] = {
    "each submission reaches one end, and leaves no worker": not_at_rest,
    "no message breaks an invariant of the ledger": lambda cluster: violations(cluster.entries),
    "a command is acknowledged after its decision is stored": lambda cluster: acknowledged_early(
        cluster.entries, cluster.acknowledged
    ),
    "no service decides on a clock that it knows to be wrong": lambda cluster: decided_on_wrong_clocks(
        zip(cluster.records, cluster.entries, strict=True),
        cluster.clock_settings,
        # a question takes a while to NATS, and its answer shows an offset that is so much smaller
        tolerated_s=max(cluster.scenario.config.deadline_slack_s, LEAST_SLACK_S) + cluster.faults.max_delay_s,
    ),
    "the same policies take each decision again": decided_otherwise,
    "each replica has the state of the ledger, and nothing is due": differing_replicas,
    "no planner decides over a decision that it cannot read": lambda cluster: decided_over_unreadable(cluster.records),
    "each decision names the messages on which it rests": lambda cluster: (
        found.in_words() for found in checked_chain(cluster.records).breaks
    ),
}
