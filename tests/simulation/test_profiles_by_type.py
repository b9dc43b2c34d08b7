"""Pools of two GPU types on the virtual cluster: unknown jobs are profiled on each type, then train on one."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import GenerationStarted, JobAdmitted, PlanDecided, ProfileCompleted
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import MANY_FAULTS, NO_FAULTS, Arrival, Faults, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.simulated_runs import random_scenario, services
from tests.support.rings import few_daily

CURVE = {1: 5.0, 2: 9.0, 4: 16.0}
SPEC = JobSpec(
    training_function="examples.digits:Digits",
    model_name="new",
    global_batch_size=256,
    max_iterations=400,
    deadline_in_s=600.0,
)
TYPES = {"a": "V100", "b": "P100"}


def half_as_fast(curve: Mapping[int, float]) -> dict[int, float]:
    return {num_gpus: rate / 2 for num_gpus, rate in curve.items()}


def run(*specs: JobSpec) -> VirtualCluster:
    """These jobs arrive one after another in a pool of a fast and a slow node."""
    scenario = Scenario(
        num_gpus_by_node={"a": 4, "b": 4},
        gpu_type_by_node=TYPES,
        config=PoolConfig(),
        timing_model=TimingModel(true_curves={"new/b256": CURVE, "new/b256@P100": half_as_fast(CURVE)}),
        arrivals=tuple(
            Arrival(at_s=10.0 + number, command=SubmitJob(job_id=f"job-{number}", tenant="lab", spec=spec))
            for number, spec in enumerate(specs)
        ),
    )
    with VirtualCluster(scenario, services, seed=3) as cluster:  # the fast node joins first: its curves name no type
        cluster.run(3_600.0)
    assert cluster.state.gpu_types == ("V100", "P100")
    assert list(violations(cluster.entries)) == []
    assert verify(cluster.entries, planners()).difference is None
    return cluster


def decided(cluster: VirtualCluster, kind: type) -> list[JobAdmitted]:
    messages = (entry.message for entry in cluster.entries)
    events = (event for message in messages if isinstance(message, PlanDecided) for event in message.events)
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("min_gpus", [1, 2])
def test_a_job_is_profiled_on_both_types_and_trains_on_the_slower_one(min_gpus: int) -> None:
    cluster = run(replace(SPEC, min_gpus=min_gpus))
    (admitted,) = decided(cluster, JobAdmitted)
    assert admitted.gpu_type == "P100"
    measured = {key: curve.iterations_per_s for key, curve in cluster.state.curves.items()}
    part = "[2..]" if min_gpus == 2 else ""
    assert {f"lab/new/b256{part}", f"lab/new/b256@P100{part}"} <= set(measured)
    assert [event.profile_key for event in decided(cluster, ProfileCompleted)] == [
        f"lab/new/b256{part}",
        f"lab/new/b256@P100{part}",
    ]
    job = cluster.state.ended_jobs["job-0"]
    assert (job.phase, job.spec and job.spec.gpu_type) == (Phase.FINISHED, "P100")
    started = [entry.message for entry in cluster.entries if isinstance(entry.message, GenerationStarted)]
    assert started


def test_jobs_divide_themselves_over_the_types() -> None:
    urgent = replace(SPEC, deadline_in_s=60.0)
    cluster = run(replace(SPEC, gpu_type="P100"), replace(SPEC, gpu_type="V100"), urgent)
    admitted = {event.job_id: event.gpu_type for event in decided(cluster, JobAdmitted)}
    assert admitted["job-0"] == "P100"
    assert admitted["job-1"] == ""
    assert all(job.phase in (Phase.FINISHED, Phase.REJECTED) for job in cluster.state.ended_jobs.values())


@pytest.mark.parametrize("curves_known", [True, False])
@pytest.mark.parametrize("faults", [NO_FAULTS, replace(MANY_FAULTS, until_s=200.0)])
@pytest.mark.parametrize("seed", few_daily(range(4), 1))
def test_pools_of_two_types_come_to_rest_and_every_decision_is_taken_again(
    seed: int, faults: Faults, curves_known: bool
) -> None:
    """The type of the node that joins first has the curves without a type."""
    base = random_scenario(seed, curves_known=curves_known)
    known = base.timing_model.true_curves
    slower = {f"{key}@{gpu_type}": half_as_fast(known[key]) for key in known for gpu_type in ("V100", "P100")}
    curves = {**known, **slower}
    scenario = replace(
        base,
        gpu_type_by_node={"a": "V100", "b": "P100", "c": "V100", "d": "P100"},
        config=replace(base.config, curves=curves if curves_known else {}),
        timing_model=replace(base.timing_model, true_curves=curves),
    )
    with VirtualCluster(scenario, services, seed=seed, faults=faults) as cluster:
        cluster.run(7_200.0)
    assert not cluster.state.live_jobs
    assert list(violations(cluster.entries)) == []
    assert verify(cluster.entries, planners()).difference is None
