"""The published traces on pools of two GPU types, of which the second is half as fast; the bundled ones without them.

A trace runs on a quarter and on a sixteenth of the cluster that it was published with, of each type.
"""

from collections.abc import Iterable

from benchmarks.heterogeneous.deadlines import (
    FAST,
    GPUS_PER_NODE,
    HALF_AS_FAST,
    SLOW,
    each_type_alone,
    simulated,
    summary_rows,
)
from benchmarks.heterogeneous.typed_workloads import on_types
from benchmarks.report import Measured, Row
from benchmarks.scheduling.workloads import Case, tables, trace_cases
from elasticflow.simulator.baselines.policy_catalogue import OURS
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.workload import ClusterShape, TypedPool

PARTS = (4, 16)  # of the published cluster, on each type


def measure_published_traces(*, max_jobs: int) -> Measured:
    """Each policy on the first max_jobs jobs of each trace."""
    cases = trace_cases(None, tables(None))
    return {"cases": [result for case in cases for part in PARTS for result in _measured(case.first(max_jobs), part)]}


def _measured(case: Case, part: int) -> list[Measured]:
    size = max(case.published_gpus // part, GPUS_PER_NODE)
    pool = TypedPool((FAST, SLOW), (size, size))
    workload = on_types(case.workload, HALF_AS_FAST)
    cluster = ClusterShape.of_pool(pool, GPUS_PER_NODE)
    runs = [SimulatedRun(workload=workload, cluster=cluster, policy=policy) for policy in OURS]
    bound = runs[0].bound()
    return [
        {
            "policy": run.policy,
            "trace": case.name,
            "pool": f"{pool}",
            "jobs": len(workload.jobs),
            "bound": bound.jobs_met,
            "bound_exact": bound.exact,
            **simulated(run),
            "alone": each_type_alone(run, pool),
        }
        for run in runs
    ]


def rows(measured: Measured) -> Iterable[Row]:
    for case in measured["cases"]:
        alone = ", ".join(f"{name} {each['met']}" for name, each in case["alone"].items())
        yield Row(
            f"{case['trace']}, first {case['jobs']} jobs, {case['pool']}, {case['policy']}: deadlines met",
            f"{case['met']} of {case['slo']}",
            "the better of each type alone",
            f"alone {alone}; bound {case['bound']:.0f}; {case['late']} late, "
            f"{case['certificate_failures']} of {case['certificates_checked']} certificates wrong",
        )
    yield from summary_rows(measured["cases"])
