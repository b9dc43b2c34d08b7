"""Deadlines met on pools of several GPU types: beside the bound by type, beside one type alone, on published traces.

"Alone" gives all jobs to the GPUs of one type. A workload is feasible if the bound meets all its jobs with a deadline.
The bound may divide one job over both types at the sum of their throughputs. The schedule with hindsight may not.

A published trace runs on a quarter and on a sixteenth of the cluster that it was published with, of each of two types,
of which the second is half as fast; the bundled ones do without them. And a pool whose nodes all name one GPU type must
decide as the same pool without types: every decision, to the last digit.

The time of a decision (submission, allocation and placement) is that in a large pool of four types, which the services'
own policies have filled. One job asks to come in after all others have reported their progress, exactly as planned.
Beside it stands one plain pass over the same jobs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.report import Measured, Row
from benchmarks.scheduling.decisions import LOOSE, TIGHT, recipe_of
from benchmarks.scheduling.pools import SEED, all_reported, arriving_jobs, decided, loaded, plain_pass, submitted
from benchmarks.scheduling.workloads import Case, tables, trace_cases
from benchmarks.timing import Took, spreads, timed
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.runtime.service.run_service import keep_what_is_loaded
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.simulator.baselines.policy_catalogue import OURS, planners
from elasticflow.simulator.bound import feasible_alone, hindsight_schedule
from elasticflow.simulator.trace.failures_and_speed_noise import Failures
from elasticflow.simulator.trace.simulated_run import SimulatedRun, execute
from elasticflow.simulator.trace.simulation import submission
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import (
    ClusterShape,
    TraceJob,
    TypedPool,
    Workload,
    bundled_throughputs,
    bundled_trace,
    bundled_traces,
    throughputs_by_type,
)

# --- workloads whose speeds on the types have one ratio ------------------------------------------------


def on_types(workload: Workload, speed_by_type: Mapping[str, float]) -> Workload:
    """The same jobs with a curve on each type: their own times the speed of the type, which is 1 for the first."""
    return replace(workload, jobs=tuple(_on_types(job, speed_by_type) for job in workload.jobs))


def _on_types(job: TraceJob, speed_by_type: Mapping[str, float]) -> TraceJob:
    curve = job.measured or job.curve
    return replace(job, measured_by_type={name: _faster(curve, speed) for name, speed in speed_by_type.items()})


def _faster(curve: ScalingCurve, speed: float) -> ScalingCurve:
    return ScalingCurve(curve.num_gpus_L, tuple(rate * speed for rate in curve.iterations_per_s_L))


# --- deadlines met on pools of two types ---------------------------------------------------------------


GPUS_PER_NODE = 4
FAST, SLOW = "V100", "P100"
HALF_AS_FAST = {FAST: 1.0, SLOW: 0.5}
BUNDLED_SIZES = (4, 8, 12, 16)  # GPUs of each type
SEEDS = (1, 2)
HINDSIGHT_MOVES = 5_000
GENERATED_POOLS = (TypedPool((FAST, SLOW), (8, 8)), TypedPool((FAST, SLOW), (4, 12)), TypedPool((FAST, "K80"), (4, 16)))
_SMALL_JOBS = {1: 0.5, 2: 0.25, 4: 0.25}  # Gavel's table has at most 4 GPUs of the fast type
GENERATED = {
    "tight": Recipe(num_gpus_weights=_SMALL_JOBS, median_gpu_hours=0.5, tightness=(0.5, 2.0), load=1.0),
    "loose": Recipe(num_gpus_weights=_SMALL_JOBS, median_gpu_hours=0.5, tightness=(1.5, 6.0), load=0.7),
}


@dataclass(frozen=True, slots=True)
class TypedCase:
    workload: Workload
    pool: TypedPool


def measure_deadlines(*, share_of_cases: float, num_jobs: int) -> Measured:
    """Each policy on each case. share_of_cases: in (0, 1]. num_jobs: of each generated workload."""
    cases = list(_cases(num_jobs))
    chosen = cases[:: max(round(1 / share_of_cases), 1)]
    return {"cases": [result for case in chosen for result in _measured(case)]}


def _cases(num_jobs: int) -> Iterator[TypedCase]:
    """Bundled traces on a second type that is half as fast, and jobs of Gavel's models with its throughputs."""
    tables = read_throughputs(bundled_throughputs())
    for name in bundled_traces():
        workload = on_types(read_trace(bundled_trace(name), tables), HALF_AS_FAST)
        for size in BUNDLED_SIZES:
            yield TypedCase(workload, TypedPool((FAST, SLOW), (size, size)))
    for pool in GENERATED_POOLS:
        typed = read_throughputs(throughputs_by_type(), pool.gpu_types)
        for name, recipe in GENERATED.items():
            for seed in SEEDS:
                yield TypedCase(_generated(name, replace(recipe, num_jobs=num_jobs), typed, pool, seed), pool)


def _generated(name: str, recipe: Recipe, typed: Throughputs, pool: TypedPool, seed: int) -> Workload:
    """The load is that of all GPUs, at the speed of the first type."""
    return generate(replace(recipe, cluster_gpus=pool.total_gpus), typed, seed, f"gavel {name}, seed {seed}")


def _measured(case: TypedCase) -> list[Measured]:
    """One result for each policy."""
    cluster = ClusterShape.of_pool(case.pool, GPUS_PER_NODE)
    runs = [SimulatedRun(workload=case.workload, cluster=cluster, policy=policy) for policy in OURS]
    rulers = _rulers(case, runs[0])
    return [
        {"policy": run.policy, **rulers, **simulated(run), "alone": each_type_alone(run, case.pool)} for run in runs
    ]


def _rulers(case: TypedCase, run: SimulatedRun) -> Measured:
    """What no policy exceeds, and what is reached with hindsight if each job has one type, as in our promises."""
    bound, num_gpus_by_type, cost = run.bound(), case.pool.num_gpus_by_type, run.resize_cost
    found = hindsight_schedule(case.workload, num_gpus_by_type, cost, moves=HINDSIGHT_MOVES, bound=bound)
    on_one_type = {
        job_id
        for name, num_gpus in num_gpus_by_type.items()
        for job_id in feasible_alone(
            case.workload.on_type(name), {name: num_gpus}, run.overheads.least(case.workload.jobs)
        )
    }
    return {
        "trace": case.workload.name,
        "pool": f"{case.pool}",
        "deadlines": sum(job.deadline_s is not None for job in case.workload.jobs),
        "bound": bound.jobs_met,
        "bound_exact": bound.exact,
        "feasible_alone": bound.feasible_alone,
        "feasible_on_one_type": len(on_one_type),
        "hindsight": found.met,
    }


def each_type_alone(run: SimulatedRun, pool: TypedPool) -> Measured:
    """The same jobs on the GPUs of one type of the pool, by type."""
    return {
        name: simulated(
            replace(
                run,
                workload=run.workload.on_type(name),
                cluster=ClusterShape.of_pool(TypedPool((name,), (num_gpus,)), GPUS_PER_NODE),
            )
        )
        for name, num_gpus in pool.num_gpus_by_type.items()
    }


def simulated(run: SimulatedRun) -> Measured:
    """Promises, deadlines met and checked certificates of one run."""
    verification = run.verification()
    outcome = execute(run, run.simulation(verification), verification)
    return {
        "slo": outcome.result.num_slo,
        "met": outcome.result.num_met(),
        "late": outcome.result.num_late(),
        "certificates_checked": outcome.certificates_checked,
        "certificate_failures": outcome.certificate_failures,
    }


def deadline_rows(measured: Measured) -> Iterable[Row]:
    yield from summary_rows(measured["cases"])
    known = _best_known(measured["cases"])
    for policy in OURS:
        feasible = [case for case in _of(policy, measured["cases"]) if _is_feasible(case)]
        of_known = [case["met"] / known[_workload(case)] for case in feasible]
        yield Row(f"{policy}: of the best known schedule with one type a job, there", _spread(of_known), "")


def summary_rows(all_cases: Iterable[Measured]) -> Iterator[Row]:
    """The summary of each policy, over all cases."""
    for policy in OURS:
        cases = _of(policy, all_cases)
        of_bound = [case["met"] / case["bound"] for case in cases if case["bound"]]
        of_feasible = [case["met"] / case["slo"] for case in cases if _is_feasible(case)]
        pairs = [(case["met"], max(alone["met"] for alone in case["alone"].values())) for case in cases]
        below = [f"{met} of {alone}" for met, alone in pairs if met < alone]
        yield Row(f"{policy}: deadlines met, of the typed bound", _spread(of_bound), "", f"{len(cases)} cases")
        yield Row(
            f"{policy}: the same where all is feasible", _spread(of_feasible), ">= 95 %", f"{len(of_feasible)} cases"
        )
        beside = ", ".join(below)
        yield Row(f"{policy}: cases below the better type alone", f"{len(below)} of {len(cases)}", "0", beside)
        late, wrong, checked = (_sum(cases, key) for key in ("late", "certificate_failures", "certificates_checked"))
        yield Row(f"{policy}: late jobs, wrong certificates", f"{late}, {wrong}", "0, 0", f"{checked} checked")


def _of(policy: str, cases: Iterable[Measured]) -> list[Measured]:
    return [case for case in cases if case["policy"] == policy]


def _is_feasible(case: Measured) -> bool:
    """Whether the bound meets all deadlines."""
    return case["bound"] >= case["slo"] * (1 - 1e-6)


def _best_known(cases: Iterable[Measured]) -> dict[tuple[str, str], int]:
    """The most that any known schedule with one type a job meets: with hindsight, or of a policy."""
    best = defaultdict[tuple[str, str], int](int)
    for case in cases:
        best[_workload(case)] = max(best[_workload(case)], case["hindsight"], case["met"])
    return best


def _workload(case: Measured) -> tuple[str, str]:
    return case["trace"], case["pool"]


def _sum(cases: Iterable[dict[str, Any]], key: str) -> int:
    return sum(case[key] for case in cases)


def _spread(parts: list[float]) -> str:
    if not parts:
        return "none"
    return f"{100 * np.mean(parts):.1f} % ({100 * min(parts):.1f} to {100 * max(parts):.1f})"


# --- the published traces ------------------------------------------------------------------------------


PARTS = (4, 16)  # of the published cluster, on each type


def measure_published_traces(*, max_jobs: int) -> Measured:
    """Each policy on the first max_jobs jobs of each trace."""
    cases = trace_cases(None, tables(None))
    measured = (_measured_trace(case.first(max_jobs), part) for case in cases for part in PARTS)
    return {"cases": [result for of_case in measured for result in of_case]}


def _measured_trace(case: Case, part: int) -> list[Measured]:
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


def trace_rows(measured: Measured) -> Iterable[Row]:
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


# --- below the better type alone -----------------------------------------------------------------------


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


def one_type_rows(measured: Measured) -> Iterable[Row]:
    beside = f"{measured['decisions']:,} decisions in {measured['runs']} runs"
    yield Row("runs that differ if all nodes name one type", f"{measured['differing_runs']}", "0", beside)


# --- the time of a decision ----------------------------------------------------------------------------


SPEEDS = {"H100": 1.0, "A100": 0.6, "V100": 0.3, "T4": 0.1}
LARGE_GPUS_PER_NODE, APART_S = 8, 0.01
LOADS = {"with free GPUs": LOOSE, "saturated": TIGHT}


def measure_decision_time(*, num_gpus: int, num_live: int, count: int) -> Measured:
    """So many submissions, one after another, for each load. num_gpus: of all types together."""
    warm_up()
    keep_what_is_loaded()
    known = read_throughputs(bundled_throughputs())
    recipes = {name: recipe_of(num_gpus, num_live, tightness) for name, tightness in LOADS.items()}
    return {name: _timed_decisions(recipe, known, num_live, count) for name, recipe in recipes.items()}


def _timed_decisions(recipe: Recipe, known: Throughputs, num_live: int, count: int) -> Measured:
    workload = on_types(generate(recipe, known, SEED, "generated load"), SPEEDS)
    pool = TypedPool(tuple(SPEEDS), (recipe.cluster_gpus // len(SPEEDS),) * len(SPEEDS))
    simulation = loaded(
        SimulatedRun(workload=workload, cluster=ClusterShape.of_pool(pool, LARGE_GPUS_PER_NODE)), num_live
    )
    state, now_s, times = simulation.state, simulation.now_s, defaultdict[str, list[Took]](list)
    policies = planners()
    for job in arriving_jobs(recipe, known, count):
        now_s += APART_S
        state = all_reported(state, now_s)
        times["plain pass"].append(timed(partial(plain_pass, state))[1])
        commands: tuple[Command, ...] = (submission(submitted(job, now_s)),)
        for service, policy in policies.items():
            events, took = timed(partial(policy.decide, state, commands, now_s))
            times[service].append(took)
            state, commands = decided(state, service, events, now_s), ()
    return {
        "num_gpus": recipe.cluster_gpus,
        "live_jobs": len(state.live_jobs),
        "live_jobs_by_type": _by_type(state),
        "submissions": count,
        **spreads(times),
    }


def _by_type(state: PoolState) -> Mapping[str, int]:
    return Counter(spec_of(job).gpu_type or next(iter(SPEEDS)) for job in state.live_jobs.values())


def decision_rows(measured: Measured) -> Iterable[Row]:
    for name, numbers in measured.items():
        what = f"{numbers['live_jobs']:,} jobs on {numbers['num_gpus']:,} GPUs of {len(SPEEDS)} types, {name}"
        for service in ("admission", "allocator", "placement"):
            cpu_ms = numbers["cpu_ms"][service]
            yield Row(
                f"{what}: {service}",
                f"p50 {cpu_ms['p50']:.1f} ms, p99 {cpu_ms['p99']:.1f} ms of CPU time",
                "p99 <= 50 ms",
                f"plain pass {numbers['cpu_ms']['plain pass']['p50']:.2f} ms",
            )
