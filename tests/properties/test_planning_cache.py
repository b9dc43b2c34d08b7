"""A policy with a planning cache decides as the same policy without one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elasticflow.services.admission import policy as admission
from elasticflow.services.allocator import policy as allocator
from elasticflow.services.placement import policy as placement
from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import Deviations, Failures
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs, bundled_trace


class Recorder:
    """Every decision of a simulation, in order."""

    def __init__(self) -> None:
        self.decisions: list[tuple[float, tuple[PlanEvent, ...]]] = []

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        self.decisions.append((now_s, events))


def decisions(trace: str, pool: SimulatedPool, deviations: Deviations) -> list[Any]:
    workload = read_trace(bundled_trace(trace), read_throughputs(bundled_throughputs()))
    cluster, recorder = ClusterShape(num_nodes=2, gpus_per_node=8), Recorder()
    training = TrainingModel(resize_cost=reference_cost(cluster.num_gpus))
    Simulation(workload, cluster, training, pool, deviations, [recorder]).run()
    return recorder.decisions


@pytest.mark.parametrize(
    ("trace", "pool", "failures"),
    [
        ("bursty", SimulatedPool(admission="selective"), None),
        ("bursty", SimulatedPool(admission="first-come", reserve_nodes=1), Failures(seed=1, mean_up_s=20_000.0)),
    ],
)
def test_decisions_do_not_depend_on_the_planning_cache(
    trace: str, pool: SimulatedPool, failures: Failures | None
) -> None:
    uncached = {policy.service: policy for policy in (admission.POLICY, allocator.POLICY, placement.POLICY)}
    deviations = Deviations(failures=failures)
    cached, anew = (replace(pool, policies=policies) for policies in (planners(), uncached))
    assert decisions(trace, cached, deviations) == decisions(trace, anew, deviations)


def test_the_last_answer_is_computed_anew_for_another_object_or_number() -> None:
    calls = list[tuple[object, int]]()

    def answer(values: object, number: int) -> int:
        calls.append((values, number))
        return len(calls)

    cache, some, equal = PlanningCache(), np.zeros(3), np.zeros(3)
    answers = [cache.last(answer, *arguments) for arguments in ((some, 1), (some, 1), (equal, 1), (equal, 2))]
    assert answers == [1, 1, 2, 3], "objects are compared by identity, numbers by value"
    assert PlanningCache().last(answer, equal, 2) == 4, "another policy instance has another cache"
