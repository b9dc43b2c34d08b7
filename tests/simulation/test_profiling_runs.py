"""A profiling run that is slow, or hangs: the jobs behind it are profiled beside it, on the virtual cluster."""

import math
from dataclasses import replace

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import JobAdmitted, PlanDecided, ThroughputMeasured
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import MANY_FAULTS, NO_FAULTS, Arrival, Faults, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.simulated_runs import random_scenario, services

CURVE = {1: 5.0, 2: 9.0, 4: 16.0, 8: 28.0}
SLOW = JobSpec(
    training_function="examples.digits:Digits",
    model_name="slow",
    global_batch_size=256,
    max_iterations=100,
    deadline_in_s=3_000.0,
)
BEHIND = [replace(SLOW, model_name=f"behind-{number}", deadline_in_s=300.0) for number in range(3)]


def two_nodes(takes_s: float) -> VirtualCluster:
    """Each profiling run of the first job takes so long; three jobs of other profiles arrive right after it."""
    specs = {"slow": SLOW, **{spec.model_name: spec for spec in BEHIND}}
    scenario = Scenario(
        num_gpus_by_node={"a": 4, "b": 4},
        config=PoolConfig(),
        timing_model=TimingModel(
            true_curves={spec.measured_key: CURVE for spec in specs.values()},
            slow_profiles_s={SLOW.measured_key: takes_s},
        ),
        arrivals=tuple(
            Arrival(at_s=10.0 + number, command=SubmitJob(job_id=job_id, tenant="lab", spec=spec))
            for number, (job_id, spec) in enumerate(specs.items())
        ),
    )
    with VirtualCluster(scenario, services, seed=0) as cluster:
        cluster.run(3_600.0)
    return cluster


@pytest.mark.parametrize(("takes_s", "end"), [(100.0, Phase.FINISHED), (math.inf, Phase.FAILED)])
def test_jobs_behind_a_slow_profiling_run_are_promised_and_done_before_it_is_over(takes_s: float, end: Phase) -> None:
    cluster = two_nodes(takes_s)
    ended = cluster.state.ended_jobs
    assert {job_id: job.phase for job_id, job in ended.items()} == {
        "slow": end,
        **{spec.model_name: Phase.FINISHED for spec in BEHIND},
    }
    entries = cluster.entries
    decided = [event for e in entries if isinstance(e.message, PlanDecided) for event in e.message.events]
    admitted_at_s = {event.job_id: event.at_s for event in decided if isinstance(event, JobAdmitted)}
    began_s = min(admitted_at_s.values())
    slow_at_s = admitted_at_s.get("slow", ended["slow"].ended_at_s)
    assert slow_at_s is not None
    assert all(admitted_at_s[spec.model_name] < began_s + 60.0 < slow_at_s for spec in BEHIND)
    reported = [
        e.message for e in entries if isinstance(e.message, ThroughputMeasured) and e.message.source == "profile"
    ]
    assert {e.num_gpus for e in reported if e.job_id == "slow"} == (set() if end is Phase.FAILED else {1, 2, 4, 8})
    assert all((ended[id_].ended_at_s or math.inf) <= (ended[id_].deadline_s or 0.0) for id_ in admitted_at_s)
    assert list(violations(entries)) == []
    assert verify(entries, planners()).difference is None


@pytest.mark.parametrize(("seed", "faults"), [(1, NO_FAULTS), (2, NO_FAULTS), (3, replace(MANY_FAULTS, until_s=200.0))])
def test_pools_of_slow_profiling_runs_come_to_rest_and_every_decision_is_taken_again(seed: int, faults: Faults) -> None:
    base = random_scenario(seed, curves_known=False)
    slow = {key: (5.0, 30.0, 100.0)[number % 3] for number, key in enumerate(sorted(base.timing_model.true_curves))}
    scenario = replace(base, timing_model=replace(base.timing_model, slow_profiles_s=slow))
    with VirtualCluster(scenario, services, seed=seed, faults=faults) as cluster:
        cluster.run(7_200.0)
    assert not cluster.state.live_jobs
    assert list(violations(cluster.entries)) == []
    assert verify(cluster.entries, planners()).difference is None
