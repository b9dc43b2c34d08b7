"""A pre-run that is slow, or hangs: the jobs behind it are measured beside it, on the virtual cluster."""

import math
from dataclasses import replace

import pytest

from shared.messages.cluster import PoolConfig
from shared.messages.commands import SubmitJob
from shared.messages.events import JobAdmitted, PlanDecided, ThroughputMeasured
from shared.messages.job import JobSpec
from shared.messages.job_state import Phase
from simulator.cluster import Arrival, Scenario, VirtualCluster
from simulator.faults import MANY_FAULTS, NO_FAULTS, Faults
from simulator.invariants import violations
from simulator.physics import Physics
from simulator.policies import PLANNERS
from simulator.replay import verify
from tests.scenarios import QUIET_MONITOR, random_scenario

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
    """Each pre-run of the first job takes so long; three jobs of other profiles come right after it."""
    wishes = {"slow": SLOW, **{spec.model_name: spec for spec in BEHIND}}
    scenario = Scenario(
        num_gpus_by_node={"a": 4, "b": 4},
        config=PoolConfig(),
        physics=Physics(
            true_curves={spec.measured_key: CURVE for spec in wishes.values()},
            slow_profiles_s={SLOW.measured_key: takes_s},
        ),
        arrivals=tuple(
            Arrival(at_s=10.0 + number, command=SubmitJob(job_id=job_id, tenant="lab", spec=spec))
            for number, (job_id, spec) in enumerate(wishes.items())
        ),
    )
    cluster = VirtualCluster(scenario, (*PLANNERS.values(), QUIET_MONITOR), seed=0)
    cluster.run(3_600.0)
    return cluster


@pytest.mark.parametrize(("takes_s", "end"), [(100.0, Phase.FINISHED), (math.inf, Phase.FAILED)])
def test_jobs_behind_a_slow_pre_run_are_promised_and_done_before_it_is_over(
    takes_s: float, end: Phase
) -> None:
    cluster = two_nodes(takes_s)
    ended = cluster.state.ended_jobs
    assert {job_id: job.phase for job_id, job in ended.items()} == {
        "slow": end,
        **{spec.model_name: Phase.FINISHED for spec in BEHIND},
    }
    entries = cluster.ledger.entries
    decided = [event for e in entries if isinstance(e.message, PlanDecided) for event in e.message.events]
    admitted_at_s = {event.job_id: event.at_s for event in decided if isinstance(event, JobAdmitted)}
    began_s = min(admitted_at_s.values())
    slow_at_s = admitted_at_s.get("slow", ended["slow"].ended_at_s)
    assert slow_at_s is not None
    assert all(admitted_at_s[spec.model_name] < began_s + 60.0 < slow_at_s for spec in BEHIND)
    told = [
        e.message
        for e in entries
        if isinstance(e.message, ThroughputMeasured) and e.message.source == "profile"
    ]
    assert {fact.num_gpus for fact in told if fact.job_id == "slow"} == (
        set() if end is Phase.FAILED else {1, 2, 4, 8}
    )
    assert all((ended[id_].ended_at_s or math.inf) <= (ended[id_].deadline_s or 0.0) for id_ in admitted_at_s)
    assert list(violations(entries)) == []
    assert verify(entries, PLANNERS).difference is None


@pytest.mark.parametrize(
    ("seed", "faults"), [(1, NO_FAULTS), (2, NO_FAULTS), (3, replace(MANY_FAULTS, until_s=200.0))]
)
def test_pools_of_slow_pre_runs_come_to_rest_and_every_decision_is_taken_again(
    seed: int, faults: Faults
) -> None:
    base = random_scenario(seed, curves_known=False)
    slow = {
        key: (5.0, 30.0, 100.0)[number % 3] for number, key in enumerate(sorted(base.physics.true_curves))
    }
    scenario = replace(base, physics=replace(base.physics, slow_profiles_s=slow))
    cluster = VirtualCluster(scenario, (*PLANNERS.values(), QUIET_MONITOR), seed=seed, faults=faults)
    cluster.run(7_200.0)
    assert not cluster.state.live_jobs
    assert list(violations(cluster.ledger.entries)) == []
    assert verify(cluster.ledger.entries, PLANNERS).difference is None
