"""A policy with a planning cache decides as the same policy without one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from elasticflow.services.admission import policy as admission
from elasticflow.services.allocator import policy as allocator
from elasticflow.services.placement import policy as placement
from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace.failures_and_speed_noise import Failures
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs, bundled_trace


class Recorder:
    """Every decision of a simulation, in order."""

    def __init__(self) -> None:
        self.decisions: list[tuple[float, tuple[PlanEvent, ...]]] = []

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        self.decisions.append((now_s, events))


def decisions(trace: str, policies: Mapping[str, Policy[Any]], **options: Any) -> list[Any]:
    workload = read_trace(bundled_trace(trace), read_throughputs(bundled_throughputs()))
    cluster, recorder = ClusterShape(num_nodes=2, gpus_per_node=8), Recorder()
    cost = reference_cost(cluster.num_gpus)
    Simulation(workload, cluster, policies, resize_cost=cost, observers=[recorder], **options).run()
    return recorder.decisions


@pytest.mark.parametrize(
    ("trace", "options"),
    [
        ("bursty", {"admission": "selective"}),
        (
            "bursty",
            {"admission": "first-come", "reserve_nodes": 1, "failures": Failures(seed=1, mean_up_s=20_000.0)},
        ),
    ],
)
def test_decisions_do_not_depend_on_the_planning_cache(trace: str, options: dict[str, Any]) -> None:
    uncached = {policy.service: policy for policy in (admission.POLICY, allocator.POLICY, placement.POLICY)}
    assert decisions(trace, planners(), **options) == decisions(trace, uncached, **options)


def test_the_last_answer_is_computed_anew_for_another_object_or_number() -> None:
    calls = list[tuple[object, int]]()

    def answer(values: object, number: int) -> int:
        calls.append((values, number))
        return len(calls)

    cache, some, equal = PlanningCache(), np.zeros(3), np.zeros(3)
    answers = [cache.last(answer, *arguments) for arguments in ((some, 1), (some, 1), (equal, 1), (equal, 2))]
    assert answers == [1, 1, 2, 3], "objects are compared by identity, numbers by value"
    assert PlanningCache().last(answer, equal, 2) == 4, "another policy instance has another cache"
