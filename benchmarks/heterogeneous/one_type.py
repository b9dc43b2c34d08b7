"""A pool whose nodes all name one GPU type, beside the same pool without types: every decision, to the last digit."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from benchmarks.report import Measured, Row
from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.policy_catalogue import OURS
from elasticflow.simulator.trace.failures_and_speed_noise import Failures
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import (
    ClusterShape,
    TypedPool,
    bundled_throughputs,
    bundled_trace,
    bundled_traces,
)

NAME = "H100-80GB-HBM3"
FAILURES = (None, Failures(seed=3, mean_up_s=20_000.0, mean_down_s=2_000.0))


@dataclass
class Decisions:
    """Observes a simulation."""

    seen: list[str] = field(default_factory=list[str])

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        """Record the events of a decision with all digits."""
        self.seen += [f"{now_s!r} {event!r}" for event in events]


def measure_one_type(*, num_nodes: int) -> Measured:
    """Each bundled trace, each policy, without and with failures."""
    tables = read_throughputs(bundled_throughputs())
    cluster = ClusterShape(num_nodes=num_nodes, gpus_per_node=4)
    runs = [
        SimulatedRun(workload=read_trace(bundled_trace(trace), tables), cluster=cluster, policy=policy, failures=each)
        for trace in bundled_traces()
        for policy in OURS
        for each in FAILURES
    ]
    named = ClusterShape.of_pool(TypedPool((NAME,), (cluster.num_gpus,)), cluster.gpus_per_node)
    pairs = [(_decisions(run), _decisions(replace(run, cluster=named))) for run in runs]
    return {
        "runs": len(pairs),
        "decisions": sum(len(without) for without, _ in pairs),
        "differing_runs": sum(without != with_name for without, with_name in pairs),
    }


def _decisions(run: SimulatedRun) -> list[str]:
    decisions = Decisions()
    run.simulation(decisions).run()
    return decisions.seen


def rows(measured: Measured) -> Iterable[Row]:
    beside = f"{measured['decisions']:,} decisions in {measured['runs']} runs"
    yield Row("runs that differ if all nodes name one type", f"{measured['differing_runs']}", "0", beside)
