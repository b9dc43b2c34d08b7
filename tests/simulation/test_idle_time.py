"""Held, idle and lost GPU-seconds are those of the cluster; windows are the times in which no job holds a GPU."""

from itertools import pairwise

import pytest

from elasticflow.shared.scheduling.allocation.allocation import IdleCause
from elasticflow.simulator.trace.failures_and_speed_noise import Failures
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs, bundled_trace

CLUSTER = ClusterShape(num_nodes=3, gpus_per_node=8)
FAILURES = Failures(seed=1, mean_up_s=20_000.0, mean_down_s=2_000.0)


def simulated(
    trace: str, policy: str = "selective", reserve_nodes: int = 0, failures: Failures | None = None
) -> Result:
    workload = read_trace(bundled_trace(trace), read_throughputs(bundled_throughputs()))
    run = SimulatedRun(
        workload=workload, cluster=CLUSTER, policy=policy, reserve_nodes=reserve_nodes, failures=failures
    )
    return run.simulation(measures_idle_time=True).run()


@pytest.mark.parametrize("policy", ["selective", "first-come", "edf"])
@pytest.mark.parametrize("failures", [None, FAILURES])
@pytest.mark.parametrize("trace", ["small", "bursty"])
def test_every_gpu_second_is_held_idle_or_lost(trace: str, policy: str, failures: Failures | None) -> None:
    result = simulated(trace, policy, reserve_nodes=1 if failures else 0, failures=failures)
    idle = result.idle_time
    assert idle is not None
    began_s = result.workload.jobs[0].submitted_at_s
    lost_s = sum((outage.to_s or result.ended_at_s) - outage.from_s for outage in result.outages)
    total_s = CLUSTER.num_gpus * (result.ended_at_s - began_s) - CLUSTER.gpus_per_node * lost_s
    assert sum(idle.gpu_seconds.values()) + 3_600.0 * result.gpu_hours == pytest.approx(total_s)
    assert sum(window.length_s for window in idle.windows) == pytest.approx(sum(idle.gpu_seconds.values()))


def test_windows_of_one_gpu_do_not_overlap() -> None:
    idle = simulated("bursty").idle_time
    assert idle is not None
    by_gpu = sorted(idle.windows, key=lambda window: (window.gpu, window.start_s))
    assert len(by_gpu) > 10
    assert all(a.gpu != b.gpu or a.end_s <= b.start_s for a, b in pairwise(by_gpu))


def test_causes_follow_from_the_cluster() -> None:
    with_reserve = simulated("bursty", reserve_nodes=1).idle_time
    without = simulated("bursty").idle_time
    assert with_reserve is not None
    assert without is not None
    assert with_reserve.gpu_seconds[IdleCause.RESERVE] > 0.0 == without.gpu_seconds[IdleCause.RESERVE]
    assert without.gpu_seconds[IdleCause.BETWEEN_PLACEMENTS] == 0.0, "simulated decisions take no time"


def test_the_decisions_are_the_same_whether_idle_time_is_measured_or_not() -> None:
    workload = read_trace(bundled_trace("small"), read_throughputs(bundled_throughputs()))
    run = SimulatedRun(workload=workload, cluster=CLUSTER)
    assert run.simulation().run().fates == run.simulation(measures_idle_time=True).run().fates
