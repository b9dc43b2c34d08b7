"""A job of unknown speed in a pool full of promises: it is measured within seconds, and no promise breaks."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import elasticflow.services.allocator.profiling
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import (
    AllocationDecided,
    JobAdmitted,
    JobRejected,
    PlanDecided,
    ProfileRequested,
)
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.admission.planned_pool import MEASUREMENT_S
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.simulated_runs import services

CURVE = {1: 5.0, 2: 9.0, 4: 16.0, 8: 28.0}
KNOWN = JobSpec(
    training_function="examples.digits:Digits", model_name="known", global_batch_size=256, max_iterations=1_000
)
PROMISED_S = 1_000 / (0.9 * CURVE[2])  # of each of four jobs on two GPUs
ASKED_AT_S = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Seconds after the submission of job u: until it has a GPU, and until admission has decided."""

    measured_after_s: float
    decided_after_s: float
    planned: bool  # the sender learned at once when it would be measured


def full_pool(
    windows_s: list[float], seed: int = 0, *, asked_at_s: float = ASKED_AT_S
) -> tuple[VirtualCluster, Answer]:
    """Four promised jobs on eight GPUs, each with so many seconds, and later the job u of unknown speed."""
    promised = [replace(KNOWN, deadline_in_s=window_s) for window_s in windows_s]
    commands = [SubmitJob(job_id=f"p{n}", tenant="lab", spec=spec) for n, spec in enumerate(promised)]
    unknown = replace(KNOWN, model_name="unknown", max_iterations=300, deadline_in_s=900.0)
    scenario = Scenario(
        num_gpus_by_node={"a": 4, "b": 4},
        config=PoolConfig(curves={"known/b256": CURVE}, stop_free=True),
        timing_model=TimingModel(true_curves={"known/b256": CURVE, "unknown/b256": CURVE}),
        arrivals=(
            *(Arrival(at_s=10.0, command=command) for command in commands),
            Arrival(at_s=asked_at_s, command=SubmitJob(job_id="u", tenant="lab", spec=unknown)),
        ),
    )
    with VirtualCluster(scenario, services, seed=seed) as cluster:
        cluster.run(3_600.0)
    return cluster, answer_in(cluster)


def answer_in(cluster: VirtualCluster) -> Answer:
    decisions = [entry.message for entry in cluster.entries if isinstance(entry.message, PlanDecided)]
    plan_events = [event for decision in decisions for event in decision.events]
    (requested,) = (event for event in plan_events if isinstance(event, ProfileRequested))
    decided = next(e for e in plan_events if isinstance(e, JobAdmitted | JobRejected) and e.job_id == "u")
    shares = (e for e in plan_events if isinstance(e, AllocationDecided) and e.at_s >= requested.at_s)
    measured = next(event for event in shares if event.num_gpus_by_job.get("u"))
    return Answer(
        measured_after_s=measured.at_s - requested.at_s,
        decided_after_s=decided.at_s - requested.at_s,
        planned=requested.measured_from_s is not None,
    )


def all_promises_hold(cluster: VirtualCluster) -> bool:
    ended = cluster.state.ended_jobs.values()
    promised = [job for job in ended if job.minimum_satisfactory_share]
    return all(
        job.phase is Phase.FINISHED and (job.ended_at_s or math.inf) <= (job.deadline_s or 0) for job in promised
    )


def test_an_answer_that_took_the_length_of_a_job_takes_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    windows_s = [PROMISED_S + 18.0] * 4
    cluster, answer = full_pool(windows_s)
    assert len(cluster.state.ended_jobs) == 5
    assert answer.planned
    assert answer.measured_after_s < 0.1
    assert answer.decided_after_s < 3 * MEASUREMENT_S, "on one, two and four GPUs"
    assert all_promises_hold(cluster)
    assert list(violations(cluster.entries)) == []
    assert verify(cluster.entries, planners()).difference is None
    monkeypatch.setattr(elasticflow.services.allocator.profiling, "_loan", lambda *_: None)
    _, without_loans = full_pool(windows_s)
    assert without_loans.decided_after_s > 40.0


@pytest.mark.parametrize("seed", range(3))
def test_no_promise_breaks_and_no_job_waits_longer_for_its_measurement(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slack from none to plenty, and a submission at any time of the promised jobs."""
    chance = np.random.default_rng(seed)
    windows_s = [PROMISED_S + 5.0 + float(chance.exponential(12.0)) for _ in range(4)]
    asked_at_s = float(chance.uniform(15.0, 90.0))
    cluster, answer = full_pool(windows_s, seed, asked_at_s=asked_at_s)
    assert all_promises_hold(cluster)
    assert list(violations(cluster.entries)) == []
    assert verify(cluster.entries, planners()).difference is None
    monkeypatch.setattr(elasticflow.services.allocator.profiling, "_loan", lambda *_: None)
    _, without_loans = full_pool(windows_s, seed, asked_at_s=asked_at_s)
    assert answer.measured_after_s <= without_loans.measured_after_s
