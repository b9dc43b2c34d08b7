"""The rules for jobs without a promise, and baselines, on workloads that have only such jobs.

    python -m benchmarks.scheduling.best_effort [WORKLOAD...]

It prints a table in Markdown: mean completion time, the worst slowdown (completion time over the time alone on the
fewest GPUs) and the most starts of one job.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.trace.simulated_run import BEST_EFFORT_RULES, SimulatedRun, completion_numbers
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import (
    ClusterShape,
    TraceJob,
    Workload,
    bundled_throughputs,
    bundled_trace,
)

TABLES = read_throughputs(bundled_throughputs())
BASELINES = ("weighted-fair-sharing", "elastic-tiresias")
SHORT_S, EVERY_S, LONG_S, SPAN_S = 96, 100, 3_600, 43_200
SINGLE_GPUS = Recipe(
    num_jobs=1_500,
    cluster_gpus=8,
    load=0.96,
    best_effort_share=1.0,
    num_gpus_weights={1: 1.0},
    median_gpu_hours=0.3,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload on nodes of eight GPUs, with the cost of a start."""

    workload: Callable[[], Workload]
    num_nodes: int = 1
    overhead: str = "reference"


def starving() -> Workload:
    """One job of an hour on one GPU, and eight jobs of 96 s every 100 s for twelve hours."""
    jobs = [_on_resnet50("long-0", 0.0, LONG_S)]
    for batch in range(SPAN_S // EVERY_S):
        at_s = 1.0 + batch * EVERY_S
        jobs += [_on_resnet50(f"short-{8 * batch + number:05}", at_s + number, SHORT_S) for number in range(8)]
    return Workload.of("starving", jobs)


def _on_resnet50(job_id: str, submitted_at_s: float, duration_s: int) -> TraceJob:
    curve = TABLES.curve("resnet50", 64)
    return TraceJob(
        job_id=job_id,
        submitted_at_s=submitted_at_s,
        num_iterations=duration_s * 7,
        model_name="resnet50",
        global_batch_size=64,
        deadline_s=None,
        job_class=JobClass.BEST_EFFORT,
        num_gpus=1,
        duration_s=float(duration_s),
        curve=curve,
    )


def _without_deadlines(name: str) -> Workload:
    jobs = read_trace(bundled_trace(name), TABLES).jobs
    return Workload.of(name, [replace(job, job_class=JobClass.BEST_EFFORT, deadline_s=None) for job in jobs])


CASES: Mapping[str, Case] = {
    "starving, 1 s a start": Case(workload=starving, overhead="1"),
    "starving, 4 s a start": Case(workload=starving),
    "single GPUs": Case(workload=lambda: generate(SINGLE_GPUS, TABLES, seed=3)),
    "small": Case(workload=lambda: _without_deadlines("small"), num_nodes=4),
    "bursty": Case(workload=lambda: _without_deadlines("bursty"), num_nodes=8),
}


def rows(name: str) -> Iterator[tuple[str, ...]]:
    """The numbers of one case under each rule and baseline."""
    case = CASES[name]
    run = SimulatedRun(
        workload=case.workload(),
        cluster=ClusterShape(num_nodes=case.num_nodes, gpus_per_node=8),
        overhead=case.overhead,
    )
    runs = {f"`{rule}`": replace(run, best_effort=rule) for rule in BEST_EFFORT_RULES}
    runs |= {f"baseline `{policy}`": replace(run, policy=policy) for policy in BASELINES}
    for title, each in runs.items():
        result = each.simulation().run()
        numbers = completion_numbers(result)
        yield (
            name,
            title,
            f"{numbers['mean_jct_s']:,.1f}",
            f"{numbers['max_slowdown_best_effort']:.2f}",
            f"{numbers['max_stops_best_effort']:,}",
        )


if __name__ == "__main__":
    print("| workload | rule | mean completion time, s | worst slowdown | most starts of a job |")
    print("|---|---|---|---|---|", flush=True)
    for chosen in sys.argv[1:] or CASES:
        for row in rows(chosen):
            print(f"| {' | '.join(row)} |", flush=True)
