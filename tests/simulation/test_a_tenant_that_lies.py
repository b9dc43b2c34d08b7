"""A tenant whose jobs are slower than its own profile says breaks its own promises, and those of no other tenant."""

from dataclasses import replace

import numpy as np
import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Job, Phase
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario, VirtualCluster
from testbed.scenarios import CURVES, random_scenario, services
from tests.support.rings import few_daily

LIAR, HONEST = "mallory", "lab"
# On each of these a promise of the honest tenant was broken.
FOUND = [(13, 10.0), (26, 10.0), (21, 3.0)]


def with_liar(seed: int, factor: float) -> Scenario:
    """Four GPUs that are asked for by two tenants. factor: by which the profiles of one exaggerate."""
    base, chance = random_scenario(seed, num_jobs=16, num_nodes=1, mean_gap_s=4.0), np.random.default_rng([seed, 99])
    arrivals = [
        Arrival(at_s=each.at_s, command=replace(each.command, tenant=LIAR) if chance.random() < 0.5 else each.command)
        for each in base.arrivals
        if isinstance(each.command, SubmitJob)
    ]
    lies = {f"{LIAR}/{key}": {gpus: factor * rate for gpus, rate in curve.items()} for key, curve in CURVES.items()}
    return replace(base, config=replace(base.config, curves={**CURVES, **lies}), arrivals=tuple(arrivals))


def is_kept(job: Job) -> bool:
    assert job.deadline_s is not None
    return job.phase is Phase.FINISHED and job.ended_at_s is not None and job.ended_at_s <= job.deadline_s


@pytest.mark.parametrize(
    ("seed", "factor"), few_daily([*FOUND, *((seed, factor) for factor in (3.0, 10.0) for seed in range(30))], 3)
)
def test_promises_of_others_are_kept(seed: int, factor: float) -> None:
    scenario = with_liar(seed, factor)
    with VirtualCluster(scenario, services, seed=seed) as cluster:
        cluster.run(3_600.0)
    jobs = [cluster.state.job(each.command.job_id) for each in scenario.arrivals]
    promised = [
        job
        for job in jobs
        if job is not None and job.spec and job.spec.job_class is JobClass.SLO and job.phase is not Phase.REJECTED
    ]
    assert [job.job_id for job in promised if job.tenant == HONEST and not is_kept(job)] == []
    assert any(job.tenant == HONEST for job in promised)
    if (seed, factor) in FOUND:
        assert [job for job in promised if job.tenant == LIAR and not is_kept(job)], "else the lie has no effect"
