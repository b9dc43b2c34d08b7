"""Recorded histories under other policies: the exact part, the modelled part, and the accuracy of the model."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages.events import AllocationDecided, JobAdmitted, JobFailed, PlanDecided, WorkersStopped
from elasticflow.shared.messages.export import ExportWriter
from elasticflow.shared.messages.job_spec import ContinuedJob
from elasticflow.shared.state.job import Job, Phase
from elasticflow.simulator.__main__ import app
from elasticflow.simulator.baselines.policy_catalogue import BASELINES, planners, policies_named
from elasticflow.simulator.pipeline.cluster import NO_FAULTS, Faults, VirtualCluster
from elasticflow.simulator.replay.comparison import Comparison, compare
from elasticflow.simulator.replay.counterfactual import run_on
from elasticflow.simulator.replay.recorded_ledger import Entry, folded
from testbed.histories import NOW_S, pool, submit
from testbed.simulated_runs import random_scenario, services
from tests.support.baselines_in_ticks import IN_TICKS
from tests.support.rings import few_daily

FAILING = Faults(node_crash_every_s=40.0, max_outage_s=20.0, until_s=100.0)
DONE_S = 3_600.0


@cache
def life(seed: int, faults: Faults = NO_FAULTS, *, curves_known: bool = True, num_jobs: int = 12) -> VirtualCluster:
    """A pool of 16 GPUs and its jobs, from the first message until it is at rest."""
    scenario = random_scenario(seed, num_jobs=num_jobs, curves_known=curves_known)
    with VirtualCluster(scenario, services, seed=seed, faults=faults) as cluster:
        cluster.run(DONE_S)
    return cluster


def entries(cluster: VirtualCluster) -> tuple[Entry, ...]:
    return tuple(cluster.entries)


def rejected(cluster: VirtualCluster) -> set[str]:
    return {job.job_id for job in cluster.state.ended_jobs.values() if job.phase is Phase.REJECTED}


@pytest.mark.parametrize("seed", few_daily(range(4), 1))
def test_the_recorded_policy_decides_as_recorded_and_its_jobs_have_the_same_fates_in_the_model(
    seed: int,
) -> None:
    comparison = compare(entries(life(seed)), 0, "selective")
    assert comparison.first_admission is None
    assert comparison.first_allocation is None
    assert comparison.count("modelled") == comparison.count("recorded") == comparison.count("other")


@pytest.mark.parametrize("seed", few_daily(range(3), 1))
def test_jobs_take_as_long_in_the_model_as_in_the_record(seed: int) -> None:
    """The mean of many jobs counts: which job grows first may depend on half a second."""
    for cluster, tolerance in ((life(seed, num_jobs=2), 0.05), (life(seed), 0.15)):
        modelled = run_on(entries(cluster), 0, planners(), cluster.loop.now_s + DONE_S).jobs
        recorded = [job for job in cluster.state.ended_jobs.values() if job.phase is not Phase.REJECTED]
        assert all(modelled[job.job_id].phase is job.phase for job in recorded)
        again = [modelled[job.job_id] for job in recorded]
        assert seconds(again) == pytest.approx(seconds(recorded), rel=tolerance, abs=0.5)


def seconds(jobs: list[Job]) -> float:
    """From decision to end, summed over the jobs."""
    return sum(job.ended_at_s - job.decided_at_s for job in jobs if job.ended_at_s is not None)


def test_a_policy_without_admission_control_admits_the_rejected_jobs() -> None:
    cluster = next(life(seed) for seed in range(20) if rejected(life(seed)))
    comparison = compare(entries(cluster), 0, "edf")
    assert comparison.first_admission is not None
    assert set(comparison.first_admission.recorded.values()) == {"rejected"}
    assert set(comparison.first_admission.other.values()) == {"admitted"}
    assert comparison.num_admissions_that_differ == len(rejected(cluster))
    assert comparison.count("other")["rejected"] == 0
    for job in comparison.jobs:
        assert (job.recorded == "rejected") == (job.job_id in rejected(cluster))


def test_the_first_allocation_that_differs_is_that_of_the_same_instant_and_state() -> None:
    history = entries(life(0))
    first = compare(history, 0, "edf").first_allocation
    assert first is not None
    plan = history[first.sequence - 1].message
    assert isinstance(plan, PlanDecided)
    assert (plan.service, plan.now_s) == ("allocator", first.now_s)
    (allocation,) = (event for event in plan.events if isinstance(event, AllocationDecided))
    for job_id, num_gpus in first.recorded.items():
        assert allocation.num_gpus_by_job.get(job_id, 0) == num_gpus
        assert first.other[job_id] != num_gpus


def test_earlier_decisions_stand_and_training_jobs_continue() -> None:
    history = entries(life(0))
    half = len(history) // 2
    before = folded(history[:half])
    comparison = compare(history, half, "static-priority")
    counted = {job.job_id for job in comparison.jobs}
    assert counted.isdisjoint(before.ended_jobs)
    assert set(before.live_jobs) <= counted
    after = run_on(history, half, planners(), history[-1].stored_at_s + DONE_S).jobs
    for job_id, job in before.ended_jobs.items():
        assert after[job_id].ended_at_s == job.ended_at_s
    for job_id in before.live_jobs:
        ended_s = after[job_id].ended_at_s
        assert ended_s is not None
        assert ended_s >= history[half - 1].stored_at_s


@pytest.mark.parametrize("name", ["selective", "edf"])
def test_no_job_waits_for_workers_of_an_old_generation(name: str) -> None:
    history = entries(life(0))
    half_s = history[len(history) // 2].stored_at_s
    live = [job for job in run_on(history, 0, policies_named(name).policies, half_s).jobs.values() if job.live]
    assert any(job.generation > 1 for job in live)
    assert not any(job.stopping for job in live)


def test_a_job_holds_gpus_until_it_ends_and_never_more_than_the_pool_has() -> None:
    history = entries(life(3, FAILING))
    run = run_on(history, len(history) // 3, policies_named("tiresias").policies, history[-1].stored_at_s + DONE_S)
    finished = [job for job in run.jobs.values() if job.phase is Phase.FINISHED and job.job_id in run.num_gpus]
    assert finished
    changes = Counter[float]()
    for job in finished:
        steps, end_s = run.num_gpus[job.job_id], job.ended_at_s
        assert end_s is not None
        assert steps[-1][1] > 0, "it trained up to its end"
        assert [at_s for at_s, _ in steps] == sorted(at_s for at_s, _ in steps)
        for (_, before), (at_s, after) in pairwise([(0.0, 0), *steps, (end_s, 0)]):
            changes[at_s] += after - before
    held = list(accumulate(change for _, change in sorted(changes.items())))
    assert (min(held), held[-1]) == (0, 0)
    assert 0 < max(held) <= 16


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_handles_lost_nodes_and_profiled_jobs(name: str) -> None:
    for history in (entries(life(3, FAILING)), entries(life(4, curves_known=False))):
        comparison = compare(history, 0, name)
        assert comparison.jobs
        assert comparison.count("other")["undecided"] == 0
        admitted = {
            event.job_id
            for entry in history
            if isinstance(entry.message, PlanDecided)
            for event in entry.message.events
            if isinstance(event, JobAdmitted)
        }
        kept = [job for job in comparison.jobs if job.job_id in admitted]
        # whose first jobs start at a tick, after the deadlines
        ends = ("met", "finished", "late") if name in IN_TICKS else ("met", "finished")
        assert any(job.other in ends for job in kept)


@pytest.mark.parametrize("continues", [False, True])
def test_a_job_takes_the_name_of_the_one_that_failed_in_the_model_too(continues: bool) -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("han", max_iterations=60))
    history.decided(ALLOCATOR)
    history.decided(PLACEMENT)
    first = history.started("han").state.live_jobs["han"]
    failed = JobFailed(job_id="han", generation=first.generation, error="boom", iteration=9, at_s=NOW_S + 5.0)
    stopped = WorkersStopped(job_id="han", generation=first.generation, node_id="node-0", iteration=9, at_s=NOW_S + 5.0)
    history.then(failed, stopped)
    source = ContinuedJob(job_id="han", identity=first.identity, iteration=9) if continues else None
    mended = submit("han", max_iterations=90, deadline_s=NOW_S + 300.0, continues=source)
    history.decided(ADMISSION, replace(mended, replaces=first.identity), now_s=NOW_S + 6.0)
    recorded = tuple(
        Entry(sequence=number, stored_at_s=getattr(message, "at_s", getattr(message, "now_s", NOW_S)), message=message)
        for number, message in enumerate(history.messages, start=1)
    )
    han = run_on(recorded, 0, planners(), NOW_S + DONE_S).jobs["han"]
    assert (han.phase, han.iteration, han.replaces != "") == (Phase.FINISHED, 90, True)
    assert han.spec is not None
    assert (han.spec.continues is not None) == continues


# --- the command ----------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.ledger"
    with path.open("wb") as out:
        life(0).export(ExportWriter(out))
    return path


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def test_the_command_prints_the_comparison_or_one_object(file: Path) -> None:
    text = replay(file, "--policy", "tiresias", "--from", 20)
    assert text.exit_code == 0, text.output
    assert "tiresias after sequence 20" in text.stdout
    shown = json.loads(replay(file, "--policy", "tiresias", "--from", 20, "--json").stdout)
    comparison: Comparison = compare(entries(life(0)), 20, "tiresias")
    assert shown["policy"] == "tiresias"
    assert len(shown["jobs"]) == len(comparison.jobs)
    assert shown["counts"]["other"] == comparison.count("other")
    for row, job in zip(shown["jobs"], comparison.jobs, strict=True):
        assert (row["other_end_s"], len(row["other_gpus"])) == (job.other_end_s, len(job.other_gpus))


@pytest.mark.parametrize("arguments", [("--policy", "oracle"), ("--from", 3), ("--policy", "edf", "--from", 10**6)])
def test_what_cannot_be_compared_is_refused(file: Path, arguments: tuple[object, ...]) -> None:
    assert replay(file, *arguments).exit_code == 2


def test_eflow_replay_passes_its_options_to_the_simulator(file: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "elasticflow",
        "replay",
        file,
        "--policy",
        "edf",
        "--from",
        "20",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["policy"], shown["from_sequence"]) == ("edf", 20)
