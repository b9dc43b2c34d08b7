"""A pool whose nodes all name one GPU type decides as one whose nodes name none, to the last digit."""

from dataclasses import dataclass, field

import pytest

from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.state.pool import PoolState, num_gpus_by_type
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import Deviations, Failures
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, TypedPool, bundled_throughputs, bundled_trace

NAMED = "H100-80GB-HBM3"
EQUAL = ClusterShape(num_nodes=4, gpus_per_node=4)


@dataclass
class Seen:
    """All decisions, and the types that they found in the pool."""

    decisions: list[tuple[float, PlanEvent]] = field(default_factory=list[tuple[float, PlanEvent]])
    types: set[str] = field(default_factory=set[str])

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        self.types.update(num_gpus_by_type(before))
        self.decisions += [(now_s, event) for event in events]


def simulated(trace: str, failures: Failures | None, cluster: ClusterShape) -> Seen:
    workload, seen = read_trace(bundled_trace(trace), read_throughputs(bundled_throughputs())), Seen()
    cost = reference_cost(cluster.num_gpus)
    training, deviations = TrainingModel(resize_cost=cost), Deviations(failures=failures)
    Simulation(workload, cluster, training, deviations=deviations, observers=[seen]).run()
    return seen


@pytest.mark.parametrize("failures", [None, Failures(seed=3, mean_up_s=20_000.0, mean_down_s=2_000.0)])
@pytest.mark.parametrize("trace", ["small", "bursty"])
def test_decisions_are_the_same(trace: str, failures: Failures | None) -> None:
    cluster = ClusterShape.of_pool(TypedPool((NAMED,), (EQUAL.num_gpus,)), EQUAL.gpus_per_node)
    without, named = simulated(trace, failures, EQUAL), simulated(trace, failures, cluster)
    assert (without.types, named.types) == ({""}, {NAMED})
    assert len(named.decisions) > 20
    assert repr(named.decisions) == repr(without.decisions)
