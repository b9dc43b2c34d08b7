"""All services' policies together, through whole lives of jobs: without faults, and with very many.

The seed of a failure is its parameter; the same seed gives the same ledger, byte for byte.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import JobProgressed, NodeLost, PlanDecided, WorkerCrashed
from elasticflow.shared.messages.export import ExportWriter
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import VirtualCluster
from elasticflow.simulator.pipeline.faults import MANY_FAULTS, NO_FAULTS, Faults
from elasticflow.simulator.pipeline.invariants import broken_promises, violations
from elasticflow.simulator.replay.recorded_ledger import folded
from elasticflow.simulator.replay.retaken_decisions import verify
from tests.support.scenarios import random_scenario, services

ANSWERED_S = 5.0
LONGEST_S = 3_600.0  # virtual; a pool that is not at rest by then never will be
BAD_TIMES = replace(MANY_FAULTS, until_s=200.0)
CALM, STORM = range(6), range(110, 118)


@cache
def life(seed: int, faults: Faults = NO_FAULTS, curves_known: bool = True) -> VirtualCluster:
    """A pool from its first message until it is at rest, all nodes that were away are back, and that is known."""
    scenario = random_scenario(seed, curves_known=curves_known)
    with VirtualCluster(scenario, services, seed=seed, faults=faults) as cluster:
        cluster.run(LONGEST_S)
        cluster.run_for(2 * faults.max_outage_s)

        def all_have_read_all() -> bool:
            end = len(cluster.entries)
            return all(replica.folded.sequence == end for replica in cluster.replicas)

        num_entries = -1
        while num_entries < len(cluster.entries):  # what was said last may call for an answer
            num_entries = len(cluster.entries)
            cluster.run_for(ANSWERED_S)
        cluster.run_for(LONGEST_S, all_have_read_all)
    return cluster


LIVES: dict[str, Callable[[], VirtualCluster]] = {
    **{f"calm-{seed}": (lambda seed=seed: life(seed)) for seed in CALM},
    **{f"unknown-curves-{seed}": (lambda seed=seed: life(seed, NO_FAULTS, False)) for seed in CALM},
    **{f"storm-{seed}": (lambda seed=seed: life(seed, BAD_TIMES)) for seed in STORM},
    **{f"storm-unknown-curves-{seed}": (lambda seed=seed: life(seed, BAD_TIMES, False)) for seed in STORM},
}


@pytest.fixture(scope="module", params=LIVES)
def cluster(request: pytest.FixtureRequest) -> VirtualCluster:
    """Of the module: all that is asked of one life is asked in a row, in one process, which lives it once."""
    return LIVES[request.param]()


def test_every_submission_reaches_an_end_and_leaves_nothing_running(cluster: VirtualCluster) -> None:
    wishes = [arrival.command for arrival in cluster.scenario.arrivals]
    submitted = {wish.job_id for wish in wishes if isinstance(wish, SubmitJob)}
    assert set(cluster.state.ended_jobs) == submitted
    assert not cluster.state.live_jobs
    assert cluster.environment.num_processes == 0


def test_no_message_of_the_ledger_breaks_an_invariant(cluster: VirtualCluster) -> None:
    assert list(violations(cluster.entries)) == []


def test_every_decision_comes_out_the_same_again(cluster: VirtualCluster) -> None:
    entries = cluster.entries
    verification = verify(entries, planners())
    assert verification.difference is None
    num_decisions = sum(isinstance(entry.message, PlanDecided) for entry in entries)
    assert verification.num_verified + verification.num_given == num_decisions > 12


def test_a_replica_rebuilt_from_the_ledger_knows_and_decides_the_same(cluster: VirtualCluster) -> None:
    rebuilt, now_s = folded(cluster.entries), cluster.loop.now_s
    for replica in cluster.replicas:
        assert replica.folded == rebuilt
    for policy in planners().values():
        assert policy.decide(rebuilt, (), now_s) == ()  # all that was due has been said


@pytest.mark.parametrize("seed", CALM)
@pytest.mark.parametrize("curves_known", [True, False])
def test_no_promise_is_broken_where_jobs_are_as_fast_as_measured(seed: int, curves_known: bool) -> None:
    assert list(broken_promises(life(seed, NO_FAULTS, curves_known).state)) == []


def test_the_same_seed_gives_the_same_ledger() -> None:
    again = life.__wrapped__(STORM[0], BAD_TIMES)
    assert again.records == life(STORM[0], BAD_TIMES).records


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_verifies_an_exported_storm(tmp_path: Path, hash_seed: str) -> None:
    """It orders sets and persistent maps otherwise; whoever breaks ties by them is found here."""
    path = tmp_path / "storm.ledger"
    with path.open("wb") as file:
        life(STORM[0], BAD_TIMES, False).export(ExportWriter(file))
    command = [sys.executable, "-m", "elasticflow.simulator", "replay", str(path), "--verify"]
    done = subprocess.run(
        command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_storms_are_storms() -> None:
    """The tests above would say little about faults that never struck."""
    storms = [life(seed, BAD_TIMES) for seed in STORM]
    kinds = {type(entry.message) for storm in storms for entry in storm.entries}
    assert {WorkerCrashed, NodeLost, JobProgressed} <= kinds
    assert sum(storm.num_conflicts("admission") for storm in storms) > 0
    ends = {job.phase for storm in storms for job in storm.state.ended_jobs.values()}
    assert {Phase.FINISHED, Phase.REJECTED, Phase.CANCELLED} <= ends
