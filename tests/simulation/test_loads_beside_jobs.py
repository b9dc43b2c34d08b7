"""Padding loads that are opened, sealed and cancelled beside jobs change no decision on a job, to the last digit."""

from dataclasses import dataclass, field, replace
from typing import Any, get_args

import pytest

from elasticflow.shared.messages.commands import CancelLoad, Command, OpenLoad, SealLoad
from elasticflow.shared.messages.events import LoadEvent, PlanEvent
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.policy_catalogue import AdmissionPolicy, planners
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import Deviations, Failures
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs, bundled_trace
from tests.support.rings import few_daily

CLUSTER = ClusterShape(num_nodes=2, gpus_per_node=8)
SPEC = LoadSpec(task_function="jobs.fold:fold", task_s=1.0, overhead_s=0.01, start_stop_s=0.3)


@dataclass
class Seen:
    """Decisions on jobs, and on how many loads."""

    on_jobs: list[tuple[float, PlanEvent]] = field(default_factory=list[tuple[float, PlanEvent]])
    num_on_loads: int = 0

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        self.num_on_loads += sum(isinstance(event, get_args(LoadEvent)) for event in events)
        self.on_jobs += [(now_s, event) for event in events if not isinstance(event, get_args(LoadEvent))]


def with_loads(admission: Policy[Any]) -> Policy[Any]:
    """The same policy; each of its decisions takes commands on loads too, before and after those on jobs."""
    number = 0

    def decide(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
        nonlocal number
        number += 1
        name, last = f"load-{number}", f"load-{number - 1}"
        before = (OpenLoad(load_id=name, tenant="lab", spec=SPEC),)
        after = (SealLoad(load_id=name, tenant="lab", num_tasks=9), CancelLoad(load_id=last, tenant="lab"))
        return admission.decide(state, (*before, *commands, *after), now_s)

    return replace(admission, decide=decide)


def simulated(trace: str, admission: AdmissionPolicy, *, loads: bool, failures: Failures | None) -> Seen:
    workload = read_trace(bundled_trace(trace), read_throughputs(bundled_throughputs()))
    policies, seen = dict(planners()), Seen()
    if loads:
        policies["admission"] = with_loads(policies["admission"])
    Simulation(
        workload,
        CLUSTER,
        TrainingModel(resize_cost=reference_cost(CLUSTER.num_gpus)),
        SimulatedPool(policies=policies, admission=admission, reserve_nodes=1 if failures else 0),
        Deviations(failures=failures),
        [seen],
    ).run()
    return seen


@pytest.mark.parametrize("failures", [None, Failures(seed=3, mean_up_s=20_000.0, mean_down_s=2_000.0)])
@pytest.mark.parametrize("admission", ["selective", "first-come"])
@pytest.mark.parametrize("trace", few_daily(["small", "bursty"], 1))
def test_decisions_on_jobs_are_the_same(trace: str, admission: AdmissionPolicy, failures: Failures | None) -> None:
    without = simulated(trace, admission, loads=False, failures=failures)
    beside = simulated(trace, admission, loads=True, failures=failures)
    assert without.num_on_loads == 0
    assert beside.num_on_loads > 20
    assert repr(beside.on_jobs) == repr(without.on_jobs)
