"""All services' hosts together, through whole lives of jobs: without faults, and with very many.

The seed of a failure is its parameter; the same seed gives the same ledger, byte for byte. EF_SIMULATED_SEEDS is the
number of short storms; `python -m tests.support.storms` makes new ones.
"""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from elasticflow.shared.messages.events import JobProgressed, NodeLost, PlanDecided, WorkerCrashed
from elasticflow.shared.messages.export import ExportWriter
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.pipeline.cluster import NO_FAULTS, Faults, VirtualCluster
from elasticflow.simulator.pipeline.invariants import acknowledged_early, broken_promises, violations
from testbed import simulated_runs
from testbed.simulated_runs import POWER_STORM, SHORT_STORM, STORM, problems, random_scenario, run_to_rest, short_storm
from tests.support.rings import NIGHTLY, few_daily

CALM_SEEDS, STORM_SEEDS = range(6), range(110, 118)
EACH_DAY = 1  # of the seeds of each kind
FOUND_SEEDS = (40029,)  # an executor took the monitor's writes for those of another executor
OF_FOUND_SEEDS = replace(  # as they were found
    SHORT_STORM,
    node_pause_every_s=None,
    service_pause_every_s=None,
    power_loss_every_s=None,
    damaged_file_every_s=None,
)
SHORT_STORM_SEEDS = range(1000, 1000 + int(os.environ.get("EF_SIMULATED_SEEDS", "16")))


@cache
def run(seed: int, faults: Faults = NO_FAULTS, curves_known: bool = True) -> VirtualCluster:
    return run_to_rest(random_scenario(seed, curves_known=curves_known), seed, faults)


KINDS = {
    "calm": (CALM_SEEDS, NO_FAULTS, True),
    "unknown-curves": (CALM_SEEDS, NO_FAULTS, False),
    "storm": (STORM_SEEDS, STORM, True),
    "storm-unknown-curves": (STORM_SEEDS, STORM, False),
    "power-storm": (STORM_SEEDS, POWER_STORM, True),
}
RUNS = [
    pytest.param(
        (seed, *how), id=f"{kind}-{seed}", marks=[NIGHTLY] if number >= EACH_DAY or kind == "power-storm" else []
    )
    for kind, (seeds, *how) in KINDS.items()
    for number, seed in enumerate(seeds)
]


@pytest.fixture(scope="module", params=RUNS)
def cluster(request: pytest.FixtureRequest) -> VirtualCluster:
    """Of the module: the tests of one run follow each other in one process, which simulates it once."""
    return run(*request.param)


def test_every_submission_reaches_an_end_and_leaves_nothing_running(cluster: VirtualCluster) -> None:
    assert list(simulated_runs.not_at_rest(cluster)) == []


def test_no_message_of_the_ledger_breaks_an_invariant(cluster: VirtualCluster) -> None:
    assert list(violations(cluster.entries)) == []
    assert list(acknowledged_early(cluster.entries, cluster.acknowledged)) == []


def test_every_decision_comes_out_the_same_again(cluster: VirtualCluster) -> None:
    assert list(simulated_runs.decided_otherwise(cluster)) == []
    assert sum(isinstance(entry.message, PlanDecided) for entry in cluster.entries) > 12


def test_a_replica_rebuilt_from_the_ledger_knows_and_decides_the_same(cluster: VirtualCluster) -> None:
    assert list(simulated_runs.differing_replicas(cluster)) == []


@pytest.mark.parametrize("seed", SHORT_STORM_SEEDS)
def test_a_short_storm_breaks_nothing(seed: int) -> None:
    assert list(problems(short_storm(seed))) == []


@pytest.mark.parametrize("seed", FOUND_SEEDS)
def test_a_short_storm_that_found_a_defect_breaks_nothing(seed: int) -> None:
    assert list(problems(short_storm(seed, faults=OF_FOUND_SEEDS))) == []


@pytest.mark.parametrize("seed", few_daily(CALM_SEEDS, EACH_DAY))
@pytest.mark.parametrize("curves_known", [True, False])
def test_no_promise_is_broken_where_jobs_are_as_fast_as_measured(seed: int, curves_known: bool) -> None:
    assert list(broken_promises(run(seed, NO_FAULTS, curves_known).state)) == []


def test_the_same_seed_gives_the_same_ledger() -> None:
    again = run.__wrapped__(STORM_SEEDS[0], STORM)
    assert again.records == run(STORM_SEEDS[0], STORM).records


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_verifies_an_exported_storm(tmp_path: Path, hash_seed: str) -> None:
    """It iterates over sets and persistent maps in another order, which must not break ties."""
    path = tmp_path / "storm.ledger"
    with path.open("wb") as file:
        run(STORM_SEEDS[0], STORM, False).export(ExportWriter(file))
    command = [sys.executable, "-m", "elasticflow.simulator", "replay", str(path), "--verify"]
    done = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_storms_are_storms() -> None:
    """The tests above would say little about faults that never struck."""
    storms = [run(seed, STORM) for seed in STORM_SEEDS]
    kinds = {type(entry.message) for storm in storms for entry in storm.entries}
    assert {WorkerCrashed, NodeLost, JobProgressed} <= kinds
    assert sum(storm.num_conflicts("admission") for storm in storms) > 0
    ends = {job.phase for storm in storms for job in storm.state.ended_jobs.values()}
    assert {Phase.FINISHED, Phase.REJECTED, Phase.CANCELLED} <= ends
    struck = sum((storm.num_struck for storm in storms), start=Counter[str]())
    steps = ("small back", "small forward", "large back", "large forward")
    pauses = ("pause of a node", "pause of a service")
    of_bus = ("full storage", "failed read", "failed object", "duplicate", "lost answer")  # object: a snapshot
    assert all(struck[kind] for kind in (*steps, *pauses, *of_bus, "sends only", "receives only")), struck
