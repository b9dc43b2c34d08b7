"""Mean completion times and deadlines on a simulated pool of several GPU types: Gavel's policies, each with and without
mixed types, and the services' own policies.

VirtualFlow, section 6.5.2, on 4 V100, 8 P100 and 16 K80: mixed types lower the mean completion time, and by less where
more jobs arrive. It names one arrival rate, 8 jobs an hour. Its numbers are VF-F15 and VF-F16 of benchmarks/papers.
Gavel's jobs wait for the next round, ours for nothing. Short rounds show what that makes. Mixes have the same
throughput in both simulations.

The services' own policies run without rounds, with free resizes and known curves. A job without a deadline is best
effort, one with a deadline of class slo. Its range of GPUs is that of its levels. As in the linear programs it limits
the GPUs of each type, because all jobs ask for mixed types.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.heterogeneous.rounds import (
    ROUND_S,
    Outcome,
    Policy,
    Recipe,
    ThroughputTable,
    TypedJob,
    arriving_jobs,
    gavel_throughputs,
    simulate_rounds,
)
from benchmarks.heterogeneous.share_programs import deadline_policy, las_shares
from benchmarks.papers.claims_file import published_value
from benchmarks.report import Row
from elasticflow.shared.messages.gpus import GpuRange
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, ScalingCurve
from elasticflow.simulator.timing.training_time import MEASURED_MIX_EFFICIENCY
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulated_run import numbers_by_type
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, TypedPool, Workload, within

NUM_SEEDS = 3
JOBS_PER_HOUR = (1, 2, 4, 8, 12, 16, 20)
NAMED_RATE = 8  # the one that the paper names
LEVEL_WEIGHTS: Mapping[str, Mapping[tuple[int, ...], float]] = {
    "elastic": {(1, 2, 4, 8): 1.0},  # as VirtualFlow's jobs
    "fixed": {(1,): 0.70, (2,): 0.10, (4,): 0.15, (8,): 0.05},  # as Gavel's jobs
}
MIX_EFFICIENCIES: Mapping[str, float | None] = {"one type": None, "mixed": MEASURED_MIX_EFFICIENCY, "mixed at 0.9": 0.9}
PRICE_PER_HOUR = {"V100": 2.48, "P100": 1.46, "K80": 0.45}  # US dollars, on demand at Google Cloud in 2020
POLICIES: Mapping[str, Policy] = {"least attained service": las_shares, "deadlines": deadline_policy(PRICE_PER_HOUR)}
DEADLINE_FACTORS = (0.3, 2.0)
SHORT_ROUND_S = 30.0
OWN = "ours, {}"  # one of MIX_EFFICIENCIES


def measure_completion_times(pool: TypedPool, *, num_jobs: int, first_seed: int) -> dict[str, Any]:
    """Three seeds at each arrival rate; deadlines at the rate that the paper names."""
    table, seeds = gavel_throughputs(), range(first_seed, first_seed + NUM_SEEDS)

    def by_seed(recipe: Recipe) -> list[tuple[TypedJob, ...]]:
        return [arriving_jobs(recipe, table, seed=seed) for seed in seeds]

    def in_rounds(recipe: Recipe, policy: Policy, round_s: float = ROUND_S) -> dict[str, Any]:
        return {
            name: [
                _numbers(simulate_rounds(jobs, table, pool, policy, mix_efficiency=efficiency, round_s=round_s))
                for jobs in by_seed(recipe)
            ]
            for name, efficiency in MIX_EFFICIENCIES.items()
        }

    def own(recipe: Recipe) -> dict[str, Any]:
        return {
            OWN.format(name): [_own_numbers(simulate_own(jobs, table, pool, efficiency)) for jobs in by_seed(recipe)]
            for name, efficiency in MIX_EFFICIENCIES.items()
        }

    def compared(recipe: Recipe) -> dict[str, Any]:
        short = in_rounds(recipe, las_shares, SHORT_ROUND_S)
        short_rounds = {f"{name}, short rounds": runs for name, runs in short.items()}
        return {**in_rounds(recipe, las_shares), **short_rounds, **own(recipe)}

    completion = {
        sizes: {
            f"{rate}": compared(Recipe(num_jobs=num_jobs, jobs_per_hour=rate, level_weights=weights))
            for rate in JOBS_PER_HOUR
        }
        for sizes, weights in LEVEL_WEIGHTS.items()
    }
    with_deadlines = Recipe(num_jobs=num_jobs, jobs_per_hour=NAMED_RATE, deadline_factors=DEADLINE_FACTORS)
    deadlines = {name: in_rounds(with_deadlines, policy) for name, policy in POLICIES.items()}
    return {
        "pool": f"{pool}",
        "num_jobs": num_jobs,
        "seeds": list(seeds),
        "mix_efficiency": MEASURED_MIX_EFFICIENCY,
        "completion": completion,
        "deadlines": deadlines,
        "own_deadlines": own(with_deadlines),
    }


def _numbers(outcome: Outcome) -> dict[str, Any]:
    return {
        "mean_completion_s": outcome.mean_completion_s,
        "by_class_s": outcome.mean_completion_s_by_class,
        "makespan_s": outcome.makespan_s,
        "gpu_hours": outcome.gpu_hours,
        "deadlines_met": outcome.deadlines_met,
    }


def _own_numbers(result: Result) -> dict[str, Any]:
    assert result.num_unfinished == result.num_late() == 0
    return {
        "mean_completion_s": mean_completion_s(result),
        "makespan_s": result.makespan_s,
        "by_type": numbers_by_type(result),
        "deadlines_met": result.num_met() / len(result.fates),
    }


def rows(measured: dict[str, Any]) -> Iterable[Row]:
    for sizes, by_rate in measured["completion"].items():
        for rate, runs in by_rate.items():
            minutes = f"{_minutes(runs, 'one type')} -> {_minutes(runs, 'mixed')} min"
            yield Row(
                f"{sizes} jobs, {rate}/h: mean completion, mixed types against one",
                _change(runs, "mixed"),
                f"VirtualFlow: {-100 * published_value('VF-F15/at-best'):.1f} % at best" if sizes == "elastic" else "",
                f"{minutes}; at 0.9 {_change(runs, 'mixed at 0.9')}",
            )
            for name in MIX_EFFICIENCIES:
                own, others = OWN.format(name), dict.fromkeys(("one type", name))
                changes = ", ".join(_change(runs, own, other) for other in others)
                in_short_rounds = ", ".join(_change(runs, own, f"{other}, short rounds") for other in others)
                yield Row(
                    f"{sizes} jobs, {rate}/h: mean completion, {own}, against least attained service",
                    changes,
                    "shorter",
                    f"{_minutes(runs, own)} min; against rounds of {SHORT_ROUND_S:g} s {in_short_rounds}",
                )
    for policy, runs in measured["deadlines"].items():
        met = {name: 100 * np.mean([run["deadlines_met"] for run in runs[name]]) for name in runs}
        yield Row(
            f"{policy}, {NAMED_RATE}/h: deadlines met, mixed types (one type)",
            f"{met['mixed']:.1f} % ({met['one type']:.1f} %)",
        )
    for own, runs in measured["own_deadlines"].items():
        met = 100 * np.mean([run["deadlines_met"] for run in runs])
        yield Row(f"{own}, {NAMED_RATE}/h: deadlines met", f"{met:.1f} %", "", "rejected jobs count as missed")


def _change(runs: Mapping[str, Any], name: str, against: str = "one type") -> str:
    pairs = zip(runs[against], runs[name], strict=True)
    change = [100 * (other["mean_completion_s"] / one["mean_completion_s"] - 1) for one, other in pairs]
    return f"{np.mean(change):+.1f} % ({min(change):+.1f} to {max(change):+.1f})"


def _minutes(runs: Mapping[str, Any], name: str) -> str:
    return f"{np.mean([run['mean_completion_s'] for run in runs[name]]) / 60:.1f}"


# --- the services' own policies ------------------------------------------------------------------------


BATCH_SIZE = 128  # of every job: the models of the table are named with theirs
GPUS_PER_NODE = 8


def simulate_own(
    jobs: Sequence[TypedJob], table: ThroughputTable, pool: TypedPool, mix_efficiency: float | None
) -> Result:
    """Run all jobs to their ends; deterministic. mix_efficiency: None allows no mix."""
    workload = Workload.of("typed jobs", (_trace_job(job, table, pool) for job in jobs))
    training = TrainingModel(resize_cost=FREE, mix_efficiency=mix_efficiency)
    return Simulation(workload, ClusterShape.of_pool(pool, GPUS_PER_NODE), training).run()


def mean_completion_s(result: Result) -> float:
    """The mean time from submission to end, over the jobs that ended."""
    times_s = [fate.finished_at_s - fate.job.submitted_at_s for fate in result.fates if fate.finished_at_s is not None]
    return sum(times_s) / len(times_s)


def _trace_job(job: TypedJob, table: ThroughputTable, pool: TypedPool) -> TraceJob:
    rates = {gpu_type: table.throughputs(job.model, gpu_type) for gpu_type in pool.gpu_types}
    measured = {name: ScalingCurve(tuple(by_num), tuple(by_num.values())) for name, by_num in rates.items() if by_num}
    gpu_range = GpuRange(min(job.levels), max(job.levels))
    curves = (within(curve, gpu_range) for curve in measured.values())
    has_deadline = math.isfinite(job.deadline_s)
    return TraceJob(
        job_id=job.job_id,
        submitted_at_s=job.arrived_at_s,
        num_iterations=math.ceil(job.num_iterations),
        model_name=job.model,
        global_batch_size=BATCH_SIZE,
        deadline_s=job.deadline_s if has_deadline else None,
        job_class=JobClass.SLO if has_deadline else JobClass.BEST_EFFORT,
        curve=next(curve for curve in curves if curve is not None),
        min_gpus=min(job.levels),
        max_gpus=max(job.levels),
        mixed_gpu_types=True,
        measured_by_type=measured,
    )
