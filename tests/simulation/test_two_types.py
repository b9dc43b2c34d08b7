"""Traces on a pool of two GPU types, of which one is half as fast: no promise is broken, and both types are used."""

import pytest

from benchmarks.heterogeneous.deadlines import on_types
from elasticflow.simulator.trace.failures_and_speed_noise import Failures
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, TypedPool, bundled_throughputs, bundled_trace
from tests.support.rings import few_daily

FAST, SLOW = "V100", "P100"
GPUS_OF_A_TYPE = 16  # on smaller pools the fast type alone sometimes keeps more promises: see record 47


def run_of(trace: str, policy: str, *gpu_types: str, failures: Failures | None = None) -> SimulatedRun:
    workload = read_trace(bundled_trace(trace), read_throughputs(bundled_throughputs()))
    return SimulatedRun(
        workload=on_types(workload, {FAST: 1.0, SLOW: 0.5}),
        cluster=ClusterShape.of_pool(TypedPool(gpu_types, (GPUS_OF_A_TYPE,) * len(gpu_types)), 4),
        policy=policy,
        reserve_nodes=0 if failures is None else 1,
        failures=failures,
    )


def simulated(run: SimulatedRun) -> Result:
    """The result; fails if a certificate is wrong."""
    verification = run.verification()
    assert verification is not None
    result = run.simulation(verification).run()
    assert verification.failures == []
    assert verification.certificates_checked > 20
    return result


@pytest.mark.parametrize(
    ("trace", "policy"),
    few_daily([("bursty", "selective"), ("small", "first-come"), ("small", "selective"), ("bursty", "first-come")], 2),
)
def test_two_types_keep_more_promises_than_the_better_one(trace: str, policy: str) -> None:
    both = simulated(run_of(trace, policy, FAST, SLOW))
    alone = [simulated(run_of(trace, policy, gpu_type)) for gpu_type in (FAST, SLOW)]
    assert both.num_late() == 0
    assert both.num_met() >= max(result.num_met() for result in alone)
    assert all(fate.finished_at_s is not None for fate in both.fates if fate.admitted)
    assert any(len(occupancy.num_gpus_by_type) > 1 for fate in both.fates for occupancy in fate.occupancies)


@pytest.mark.parametrize("seed", few_daily(range(4), 1))
def test_where_nodes_fail_no_certificate_is_wrong(seed: int) -> None:
    failures = Failures(seed=seed, mean_up_s=7_200.0, mean_down_s=600.0)
    result = simulated(run_of("bursty", "selective", FAST, SLOW, failures=failures))
    assert len(result.outages) > 1
