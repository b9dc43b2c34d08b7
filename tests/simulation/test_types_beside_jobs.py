"""The types of GPUs change no decision yet, to the last digit: no policy reads them."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from elasticflow.shared.messages.events import NodeJoined, PlanEvent
from elasticflow.shared.state.pool import PoolState, num_gpus_by_type
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.failures_and_speed_noise import Failures
from elasticflow.simulator.trace.simulated_pool import ClusterShape
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import bundled_throughputs, bundled_trace

CLUSTER = ClusterShape(num_nodes=4, gpus_per_node=4)
TYPES = ("H100-80GB-HBM3", "V100-SXM2-16GB")


@dataclass
class Seen:
    """All decisions, and the largest number of types that one of them found in the pool."""

    decisions: list[tuple[float, PlanEvent]] = field(default_factory=list[tuple[float, PlanEvent]])
    num_types: int = 0

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        self.num_types = max(self.num_types, len(num_gpus_by_type(before)))
        self.decisions += [(now_s, event) for event in events]


def of_a_type(join: Any, node_id: str, *others: Any) -> NodeJoined:
    """As `join`, with a type and a memory that alternate between nodes."""
    number = sum(map(ord, node_id)) % len(TYPES)
    joined: NodeJoined = join(node_id, *others)
    return replace(joined, gpu_type=TYPES[number], gpu_memory_bytes=(number + 1) << 34)


def simulated(trace: str, failures: Failures | None) -> Seen:
    workload, seen = read_trace(bundled_trace(trace), read_throughputs(bundled_throughputs())), Seen()
    cost = reference_cost(CLUSTER.num_gpus)
    Simulation(workload, CLUSTER, planners(), resize_cost=cost, failures=failures, observers=[seen]).run()
    return seen


@pytest.mark.parametrize("failures", [None, Failures(seed=3, mean_up_s=20_000.0, mean_down_s=2_000.0)])
@pytest.mark.parametrize("trace", ["small", "bursty"])
def test_decisions_are_the_same(trace: str, failures: Failures | None, monkeypatch: pytest.MonkeyPatch) -> None:
    without = simulated(trace, failures)
    monkeypatch.setattr(simulated_events, "node_joined", partial(of_a_type, simulated_events.node_joined))
    typed = simulated(trace, failures)
    assert (without.num_types, typed.num_types) == (1, len(TYPES))
    assert len(typed.decisions) > 20
    assert repr(typed.decisions) == repr(without.decisions)
