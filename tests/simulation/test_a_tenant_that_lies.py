"""A tenant whose jobs are slower or faster than its profile says breaks no promise of tenants that do not share it."""

from dataclasses import replace

import numpy as np
import pytest

from elasticflow.shared.messages.commands import SubmitJob, id_of
from elasticflow.shared.messages.job_spec import SHARED, JobClass
from elasticflow.shared.state.job import Job, Phase
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario, VirtualCluster
from testbed.simulated_runs import CURVES, random_scenario, services
from tests.support.rings import few_daily

LIAR, HONEST, PARTNER = "mallory", "lab", "partner"
# On each of these a promise of the honest tenant was broken.
FOUND = [(13, 10.0), (26, 10.0), (21, 3.0), (24, 10.0)]
# On each of these a promise of the honest tenant that shares the false profile is broken.
FOUND_SHARED = [(0, 10.0), (22, 3.0)]


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


def with_shared_lie(seed: int, factor: float) -> Scenario:
    """The same, where the false profile is one that the liar shares with a third tenant, which is honest."""
    base, chance = with_liar(seed, 1.0), np.random.default_rng([seed, 98])

    def shared(command: SubmitJob) -> SubmitJob:
        is_partner = command.tenant != LIAR and chance.random() < 0.5
        if command.tenant != LIAR and not is_partner:
            return command
        tenant = PARTNER if is_partner else LIAR
        return replace(command, tenant=tenant, spec=replace(command.spec, share_profile=True))

    arrivals = [
        Arrival(at_s=each.at_s, command=shared(each.command))
        for each in base.arrivals
        if isinstance(each.command, SubmitJob)
    ]
    lies = {f"{SHARED}/{key}": {gpus: factor * rate for gpus, rate in curve.items()} for key, curve in CURVES.items()}
    return replace(base, config=replace(base.config, curves={**CURVES, **lies}), arrivals=tuple(arrivals))


def is_kept(job: Job) -> bool:
    assert job.deadline_s is not None
    return job.phase is Phase.FINISHED and job.ended_at_s is not None and job.ended_at_s <= job.deadline_s


def promised_jobs(scenario: Scenario, seed: int) -> list[Job]:
    """The jobs with a promise, after an hour."""
    with VirtualCluster(scenario, services, seed=seed) as cluster:
        cluster.run(3_600.0)
    jobs = [cluster.state.job(id_of(each.command)) for each in scenario.arrivals]
    return [
        job
        for job in jobs
        if job is not None and job.spec and job.spec.job_class is JobClass.SLO and job.phase is not Phase.REJECTED
    ]


@pytest.mark.parametrize(
    ("seed", "factor"), few_daily([*FOUND, *((seed, factor) for factor in (3.0, 10.0) for seed in range(30))], 3)
)
def test_promises_of_others_are_kept(seed: int, factor: float) -> None:
    promised = promised_jobs(with_liar(seed, factor), seed)
    assert [job.job_id for job in promised if job.tenant == HONEST and not is_kept(job)] == []
    assert any(job.tenant == HONEST for job in promised)
    if (seed, factor) in FOUND:
        assert [job for job in promised if job.tenant == LIAR and not is_kept(job)], "else the lie has no effect"


@pytest.mark.parametrize(
    ("seed", "factor"), few_daily([(seed, factor) for seed in range(30) for factor in (1 / 3, 1 / 10)], 2)
)
def test_a_tenant_that_understates_breaks_no_promise(seed: int, factor: float) -> None:
    """It reserves more than it needs, and its own promises are kept too."""
    promised = promised_jobs(with_liar(seed, factor), seed)
    assert [job.job_id for job in promised if not is_kept(job)] == []
    assert any(job.tenant == HONEST for job in promised)


@pytest.mark.parametrize(
    ("seed", "factor"), few_daily([*FOUND_SHARED, (3, 3.0), *((seed, 10.0) for seed in range(1, 30))], 2)
)
def test_a_false_shared_profile_harms_only_those_who_share_it(seed: int, factor: float) -> None:
    promised = promised_jobs(with_shared_lie(seed, factor), seed)
    assert [job.job_id for job in promised if job.tenant == HONEST and not is_kept(job)] == []
    if (seed, factor) in FOUND_SHARED:
        assert any(job.tenant == HONEST for job in promised)
        assert any(job.tenant == PARTNER and not is_kept(job) for job in promised), "who shares it believes the lie"
