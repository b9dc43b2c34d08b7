"""Simulated runs of a whole pool until it is at rest, and the checks that hold for each."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.runtime.bus.contract import DEFAULT_TIMEOUT_S
from elasticflow.shared.runtime.service.clock_check import LEAST_SLACK_S
from elasticflow.shared.runtime.service.host import Host
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import MANY_FAULTS, NO_FAULTS, START_S, Faults, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import (
    acknowledged_early,
    decided_on_wrong_clocks,
    decided_over_unreadable,
    violations,
)
from elasticflow.simulator.replay.recorded_ledger import checked_chain, folded
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.scenarios import random_scenario, services

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
        tolerated_s=max(cluster.scenario.config.deadline_slack_s, LEAST_SLACK_S),
    ),
    "the same policies take each decision again": decided_otherwise,
    "each replica has the state of the ledger, and nothing is due": differing_replicas,
    "no planner decides over a decision that it cannot read": lambda cluster: decided_over_unreadable(cluster.records),
    "each decision names the messages on which it rests": lambda cluster: (
        found.in_words() for found in checked_chain(cluster.records).breaks
    ),
}
