"""Quotes that are held and promises that are renegotiated, in whole lives of jobs on the virtual cluster."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import (
    AmendJob,
    RequestCheckpoint,
    ReserveQuote,
    SetGpuLimits,
    SubmitJob,
)
from elasticflow.shared.messages.events import PlanDecided, PlanEvent
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Phase
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
from elasticflow.simulator.pipeline.invariants import broken_promises, violations
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.simulated_runs import random_scenario, services
from tests.support.rings import few_daily

LONGEST_S = 3_600.0
FAR_S = START_S + 3_000.0
BAD_TIMES = replace(MANY_FAULTS, until_s=200.0)


def scenario(seed: int) -> Scenario:
    """Random jobs, some of them for few sizes; some take a quote that was held before, everything promised is amended
    under way, and operators scale it."""
    chance, ranges = np.random.default_rng([seed, 7]), np.random.default_rng([seed, 9])
    base = random_scenario(seed)
    base = replace(base, arrivals=tuple(_with_range(arrival, ranges) for arrival in base.arrivals))
    arrivals = list[Arrival]()
    for arrival in base.arrivals:
        command = arrival.command
        if not isinstance(command, SubmitJob) or command.spec.job_class is not JobClass.SLO:
            arrivals.append(arrival)
            continue
        if chance.random() < 0.5:  # the deadline that was quoted is not known here: a far one asks for no more
            spec = replace(command.spec, deadline_in_s=None)
            hold = ReserveQuote(job_id=command.job_id, tenant=command.tenant, spec=spec, reserve_s=30.0)
            arrivals.append(Arrival(at_s=arrival.at_s, command=hold))
            command = replace(command, spec=replace(spec, deadline_s=FAR_S))
            arrival = Arrival(at_s=arrival.at_s + float(chance.uniform(5.0, 25.0)), command=command)
        arrivals.append(arrival)
        for _ in range(2):
            iterations = max(1, int(command.spec.max_iterations * chance.uniform(0.5, 1.8)))
            amend = AmendJob(
                job_id=command.job_id,
                tenant=command.tenant,
                deadline_s=float(START_S + chance.uniform(50.0, 600.0)) if chance.random() < 0.5 else None,
                max_iterations=iterations,
            )
            at_s = arrival.at_s + float(chance.exponential(20.0))
            arrivals.append(Arrival(at_s=at_s, command=amend))
    return replace(base, arrivals=(*arrivals, *_scalings(seed, base)))


def _with_range(arrival: Arrival, chance: np.random.Generator) -> Arrival:
    """Every other job is for 1 or 2, 2 to 8, or exactly 4 GPUs."""
    command = arrival.command
    if not isinstance(command, SubmitJob) or chance.random() < 0.5:
        return arrival
    least, most = ((1, 2), (2, 8), (4, 4))[chance.integers(3)]
    return replace(arrival, command=replace(command, spec=replace(command.spec, min_gpus=least, max_gpus=most)))


def _scalings(seed: int, base: Scenario) -> Iterator[Arrival]:
    """Operators bound jobs of every class under way, or release them, and ask for checkpoints; or name what they give
    up."""
    chance, names = np.random.default_rng([seed, 8]), np.random.default_rng([seed, 10])
    for arrival in base.arrivals:
        command = arrival.command
        for _ in range(3 if isinstance(command, SubmitJob) else 0):
            at_s = arrival.at_s + float(chance.exponential(25.0))
            asked: int | None = int(chance.choice([1, 2, 3, 4, 8]))
            bounds = ((asked, None), (None, asked), (asked, asked), (None, None))[chance.integers(4)]
            until_s = float(START_S + at_s + chance.exponential(30.0)) if chance.random() < 0.7 else None
            scale = SetGpuLimits(
                job_id=command.job_id,
                tenant=command.tenant,
                min_gpus=bounds[0],
                max_gpus=bounds[1],
                until_s=until_s,
            )
            yield Arrival(at_s=at_s, command=scale)
            named = SetGpuLimits(
                job_id=command.job_id, tenant=command.tenant, without_gpus=(GpuId("abcd"[names.integers(4)], 1),)
            )
            yield Arrival(at_s=arrival.at_s + float(names.exponential(25.0)), command=named)
        if isinstance(command, SubmitJob):
            keep = RequestCheckpoint(job_id=command.job_id, tenant=command.tenant)
            yield Arrival(at_s=arrival.at_s + float(chance.exponential(25.0)), command=keep)


def life(seed: int, faults: Faults) -> VirtualCluster:
    with VirtualCluster(scenario(seed), services, seed=seed, faults=faults) as cluster:
        cluster.run(LONGEST_S)
    return cluster


def said(cluster: VirtualCluster) -> Iterator[PlanEvent]:
    for entry in cluster.entries:
        if isinstance(entry.message, PlanDecided):
            yield from entry.message.events


@pytest.mark.parametrize("seed", few_daily(range(6), 2))
def test_what_is_held_is_admitted_and_what_is_amended_is_kept(seed: int) -> None:
    cluster = life(seed, NO_FAULTS)
    decided = list(said(cluster))
    held = {event.job_id for event in decided if isinstance(event, events.QuoteReserved)}
    amended = {event.job_id: event for event in decided if isinstance(event, events.JobAmended)}
    rejected = {event.job_id for event in decided if isinstance(event, events.JobRejected)}
    assert held or amended
    assert not held & rejected
    for job_id, last in amended.items():
        job = cluster.state.ended_jobs[job_id]
        if job.phase is Phase.FINISHED:
            assert job.iteration >= last.max_iterations
            assert job.deadline_s == last.deadline_s
    assert not list(broken_promises(cluster.state))


def test_operators_are_granted_some_bounds_and_refused_others() -> None:
    decided = [event for seed in range(6) for event in said(life(seed, NO_FAULTS))]
    kinds = {type(event) for event in decided}
    assert {events.GpuLimitsSet, events.GpuLimitsRejected, events.GpuLimitsCleared} <= kinds
    assert {events.CheckpointRequested, events.CheckpointUpToDate, events.CheckpointRejected} <= kinds


@pytest.mark.parametrize("seed", few_daily(range(3), 1))
def test_the_next_generation_has_none_of_the_gpus_that_are_given_up(seed: int) -> None:
    given_up, num_placed = dict[str, set[GpuId]](), 0
    for event in said(life(seed, NO_FAULTS)):
        if isinstance(event, events.GpuLimitsSet | events.GpuLimitsCleared):
            given_up[event.job_id] = set(event.without_gpus) if isinstance(event, events.GpuLimitsSet) else set()
        elif isinstance(event, events.PlacementDecided):
            for placed in event.placements:
                named = given_up.pop(placed.job_id, set())
                assert named.isdisjoint(placed.gpus)
                num_placed += bool(named and placed.gpus)
    assert num_placed > 0


@pytest.mark.parametrize("seed", few_daily(range(2), 1))
def test_a_checkpoint_that_is_asked_for_is_told_or_the_job_ends(seed: int) -> None:
    cluster = life(seed, NO_FAULTS)
    asked = {event.job_id for event in said(cluster) if isinstance(event, events.CheckpointRequested)}
    written = [e.message for e in cluster.entries if isinstance(e.message, events.CheckpointWritten)]
    assert asked
    assert {event.job_id for event in written} == asked
    assert len(written) == len({event.request for event in written})


@pytest.mark.parametrize(("seed", "faults"), [(1, NO_FAULTS), (2, BAD_TIMES), (3, BAD_TIMES)])
def test_every_decision_is_lawful_and_is_taken_again_by_a_replay(seed: int, faults: Faults) -> None:
    cluster = life(seed, faults)
    assert not list(violations(cluster.entries))
    verification = verify(cluster.entries, planners())
    assert verification.difference is None
