"""Submissions at instants of a whole simulation: a rejection offers three other ways, a quote is tight; both hold."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from elasticflow.services.admission.policy import POLICY
from elasticflow.services.admission.quote import quote
from elasticflow.shared.messages.commands import QuoteDeadline, SubmitJob
from elasticflow.shared.messages.events import JobAdmitted, JobRejected, PlanEvent
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.state.fold.ledger_fold import apply
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.policy_catalogue import AdmissionPolicy
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs, bundled_trace

NUM_SUBMISSIONS = 60
LATER_S = (1.0, 30.0, 1_000.0, 30_000.0)
WINDOWS_S = (5.0, 60.0, 600.0, 3_600.0, 20_000.0, 60_000.0)

Moment = tuple[PoolState, JobSpec, float]


class Onlooker:
    """Remembers what each decision of admission rested on."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        for event in events:
            spec = event.spec if isinstance(event, JobAdmitted | JobRejected) else None
            if spec is not None and spec.job_class is JobClass.SLO:
                self.moments.append((before, spec, now_s))


@cache
def moments(admission: AdmissionPolicy) -> tuple[Moment, ...]:
    """Of a crowded trace; any submission at any moment, with any window."""
    workload = read_trace(bundled_trace("small"), read_throughputs(bundled_throughputs()))
    onlooker, cluster = Onlooker(), ClusterShape(num_nodes=1, gpus_per_node=8)
    cost = reference_cost(cluster.num_gpus)
    Simulation(
        workload, cluster, TrainingModel(resize_cost=cost), SimulatedPool(admission=admission), observers=[onlooker]
    ).run()
    chance, found = np.random.default_rng(7), list[Moment]()
    for _ in range(NUM_SUBMISSIONS):
        state, _, now_s = onlooker.moments[chance.integers(len(onlooker.moments))]
        spec = onlooker.moments[chance.integers(len(onlooker.moments))][1]
        window_s = float(chance.choice(WINDOWS_S) * chance.uniform(0.5, 2.0))
        found.append((state, replace(spec, deadline_s=now_s + window_s), now_s))
    return tuple(found)


def answered(state: PoolState, spec: JobSpec, now_s: float) -> PlanEvent:
    command = SubmitJob(job_id="what-if", tenant="trace", spec=spec)
    (answer,) = POLICY.decide(state, (command,), now_s)
    return answer


@pytest.mark.parametrize("admission", ["first-come", "selective"])
def test_a_refusal_offers_three_other_ways_and_each_is_promised_if_taken_at_once(
    admission: AdmissionPolicy,
) -> None:
    num_refused = 0
    for state, spec, now_s in moments(admission):
        refused = answered(state, spec, now_s)
        if not isinstance(refused, JobRejected):
            continue
        num_refused += 1
        afterwards = apply(state, refused, state.sequence + 1)
        assert len(set(refused.offers)) >= 3
        for offer in refused.offers:
            other = replace(
                spec,
                deadline_s=offer.deadline_s,
                max_iterations=offer.max_iterations,
                global_batch_size=offer.global_batch_size,
            )
            assert isinstance(answered(afterwards, other, now_s), JobAdmitted), offer
    assert num_refused >= NUM_SUBMISSIONS // 4


@pytest.mark.parametrize("admission", ["first-come", "selective"])
def test_a_quote_is_promised_if_taken_at_once_and_a_second_less_is_refused(
    admission: AdmissionPolicy,
) -> None:
    for state, spec, now_s in moments(admission):
        question = QuoteDeadline(tenant="trace", spec=replace(spec, deadline_s=None))
        quoted_s = quote(state, question, now_s).earliest_deadline_s
        assert quoted_s is not None
        assert isinstance(answered(state, replace(spec, deadline_s=quoted_s), now_s), JobAdmitted)
        assert isinstance(answered(state, replace(spec, deadline_s=quoted_s - 1.0), now_s), JobRejected)


def test_under_first_come_admission_a_later_deadline_never_turns_a_yes_into_a_no() -> None:
    for state, spec, now_s in moments("first-come"):
        question = QuoteDeadline(tenant="trace", spec=replace(spec, deadline_s=None))
        quoted_s = quote(state, question, now_s).earliest_deadline_s
        assert quoted_s is not None
        for more_s in LATER_S:
            later = answered(state, replace(spec, deadline_s=quoted_s + more_s), now_s)
            assert isinstance(later, JobAdmitted)
            if quoted_s - 1.0 - more_s > now_s:
                sooner = answered(state, replace(spec, deadline_s=quoted_s - 1.0 - more_s), now_s)
                assert isinstance(sooner, JobRejected)
