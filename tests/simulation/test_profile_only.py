"""Profile-only commands among jobs of unknown speed, on the virtual cluster."""

from dataclasses import replace

import pytest

from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.events import JobProfiled, PlanDecided
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import MANY_FAULTS, NO_FAULTS, Arrival, Faults, VirtualCluster
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.simulated_runs import random_scenario, services

BAD_TIMES = replace(MANY_FAULTS, until_s=100.0)


@pytest.mark.parametrize(("seed", "faults"), [(1, NO_FAULTS), (2, BAD_TIMES)])
def test_all_are_measured_and_every_decision_is_taken_again(seed: int, faults: Faults) -> None:
    base = random_scenario(seed, num_jobs=6, curves_known=False)
    commands = [arrival.command for arrival in base.arrivals if isinstance(arrival.command, SubmitJob)]
    asked = [
        Arrival(
            at_s=0.5 + number,
            command=ProfileJob(
                job_id=f"profile-{number}",
                tenant=command.tenant,
                spec=replace(command.spec, job_class=JobClass.BEST_EFFORT, deadline_in_s=None, min_gpus=2, max_gpus=4),
            ),
        )
        for number, command in enumerate(commands[:3])
    ]
    scenario = replace(base, arrivals=(*base.arrivals, *asked))
    with VirtualCluster(scenario, services, seed=seed, faults=faults) as cluster:
        cluster.run(3_600.0)
    decided = [e.message for e in cluster.entries if isinstance(e.message, PlanDecided)]
    measured = [event for plan in decided for event in plan.events if isinstance(event, JobProfiled)]
    assert {event.job_id for event in measured} == {arrival.command.job_id for arrival in asked}
    assert all(set(event.iterations_per_s) <= {2, 4} for event in measured)
    ends = {job.job_id: job.phase for job in cluster.state.ended_jobs.values()}
    assert all(ends.get(event.job_id, Phase.PROFILED) is Phase.PROFILED for event in measured)
    assert not cluster.state.live_jobs
    assert not list(violations(cluster.entries))
    assert verify(cluster.entries, planners()).difference is None
