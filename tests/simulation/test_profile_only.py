"""Wishes to be measured, among jobs of which nobody knows the speed, on the virtual cluster."""

from dataclasses import replace

import pytest

from shared.messages.commands import ProfileJob, SubmitJob
from shared.messages.events import JobMeasured, PlanDecided
from shared.messages.job import JobClass
from shared.messages.job_state import Phase
from simulator.cluster import Arrival, VirtualCluster
from simulator.faults import MANY_FAULTS, NO_FAULTS, Faults
from simulator.invariants import violations
from simulator.policies import PLANNERS
from simulator.replay import verify
from tests.scenarios import QUIET_MONITOR, random_scenario

BAD_TIMES = replace(MANY_FAULTS, until_s=100.0)


@pytest.mark.parametrize(("seed", "faults"), [(1, NO_FAULTS), (2, BAD_TIMES)])
def test_all_are_measured_and_every_decision_is_taken_again(seed: int, faults: Faults) -> None:
    base = random_scenario(seed, num_jobs=6, curves_known=False)
    wishes = [arrival.command for arrival in base.arrivals if isinstance(arrival.command, SubmitJob)]
    asked = [
        Arrival(
            at_s=0.5 + number,
            command=ProfileJob(
                job_id=f"profile-{number}",
                tenant=wish.tenant,
                spec=replace(
                    wish.spec, job_class=JobClass.BEST_EFFORT, deadline_in_s=None, min_gpus=2, max_gpus=4
                ),
            ),
        )
        for number, wish in enumerate(wishes[:3])
    ]
    scenario = replace(base, arrivals=(*base.arrivals, *asked))
    cluster = VirtualCluster(scenario, (*PLANNERS.values(), QUIET_MONITOR), seed=seed, faults=faults)
    cluster.run(3_600.0)
    decided = [e.message for e in cluster.ledger.entries if isinstance(e.message, PlanDecided)]
    measured = [event for plan in decided for event in plan.events if isinstance(event, JobMeasured)]
    assert {event.job_id for event in measured} == {arrival.command.job_id for arrival in asked}
    assert all(set(event.iterations_per_s) <= {2, 4} for event in measured)
    ends = {job.job_id: job.phase for job in cluster.state.ended_jobs.values()}
    assert all(ends.get(event.job_id, Phase.MEASURED) is Phase.MEASURED for event in measured)
    assert not cluster.state.live_jobs
    assert not list(violations(cluster.ledger.entries))
    assert verify(cluster.ledger.entries, PLANNERS).difference is None
