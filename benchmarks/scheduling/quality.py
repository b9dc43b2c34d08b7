"""Promises kept, and how close the deadlines met come to what is possible, on ever scarcer GPUs.

Beside each score stand three rulers: what nobody can beat (the clairvoyant bound), the best schedule that is known
with hindsight and every resize paid, and the best of the baselines. Nobody is known to get from the best schedule to
the bound; from there to ours is what knowing the future would win, and what is ours to improve.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks.scheduling.workloads import Case, cluster_of
from simulator.bound import hindsight_schedule
from simulator.trace_driven.strategies import OURS
from simulator.trace_driven.trial import Trial, run

OVERHEAD = "reference"
SCALES = (1, 2, 4, 8, 16, 32)  # parts of the published size
MAX_FAILURES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured. moves: of the search for the schedule with hindsight; 0: not searched for."""

    cases: tuple[Case, ...]
    scales: tuple[int, ...] = SCALES
    policies: tuple[str, ...] = OURS
    baselines: tuple[str, ...] = ()
    moves: int = 20_000


def measure_quality(plan: Plan, workers: int, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each case at each size. note: told of each run as it ends."""
    sizes = [
        (case, scale, case.published_gpus // scale)
        for case, scale in product(plan.cases, plan.scales)
        if case.published_gpus >= scale
    ]
    with ProcessPoolExecutor(workers) as pool:
        rulers = [pool.submit(_rulers, case, num_gpus, plan.moves) for case, _, num_gpus in sizes]
        runs = [
            {
                policy: pool.submit(_simulated, case, num_gpus, policy)
                for policy in (*plan.policies, *plan.baselines)
            }
            for case, _, num_gpus in sizes
        ]
        rows = list[dict[str, Any]]()
        for (case, scale, num_gpus), ruler, by_policy in zip(sizes, rulers, runs, strict=True):
            scores = {policy: future.result() for policy, future in by_policy.items()}
            ours = {policy: scores[policy] for policy in plan.policies}
            baselines = {policy: scores[policy] for policy in plan.baselines}
            rows.append(_row(case, scale, num_gpus, ruler.result(), ours, baselines))
            note(_in_short(rows[-1]))
    return rows


def _rulers(case: Case, num_gpus: int, moves: int) -> dict[str, Any]:
    """What nobody can beat, and what hindsight could reach."""
    trial = Trial(workload=case.workload, cluster=cluster_of(num_gpus), overhead=OVERHEAD)
    bound = trial.bound()
    rulers: dict[str, Any] = {
        "feasible_alone": bound.feasible_alone,
        "bound": bound.jobs_met,
        "bound_exact": bound.exact,
        "bound_gpu_hours": bound.gpu_hours,
        "hindsight": None,
        "hindsight_gpu_hours": None,
    }
    if moves:
        found = hindsight_schedule(case.workload, num_gpus, trial.resize_cost, moves=moves, bound=bound)
        rulers |= {"hindsight": found.met, "hindsight_gpu_hours": found.gpu_hours}
    return rulers


def _simulated(case: Case, num_gpus: int, policy: str) -> dict[str, Any]:
    """One run, every certificate checked; baselines promise nothing and give none."""
    trial = Trial(workload=case.workload, cluster=cluster_of(num_gpus), policy=policy, overhead=OVERHEAD)
    verification = trial.verification()
    outcome = run(trial, trial.simulation(verification), verification)
    result = outcome.result
    return {
        "met": result.num_met(),
        "admitted": result.num_admitted,
        "late": result.num_late(),
        "gpu_hours": result.gpu_hours,
        "resizes": result.num_resizes,
        "certificates_checked": outcome.certificates_checked,
        "certificate_failures": outcome.certificate_failures,
        "not_proved": outcome.not_proved,
        "wrong": list(outcome.failures[:MAX_FAILURES_SHOWN]),
        "wall_s": outcome.wall_s,
    }


def _row(
    case: Case,
    scale: int,
    num_gpus: int,
    rulers: dict[str, Any],
    ours: dict[str, dict[str, Any]],
    baselines: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """reachable: the most that any schedule found meets, so far as is known; by hindsight, by us or by a baseline."""
    best = max(baselines, key=lambda name: baselines[name]["met"], default=None)
    met = [score["met"] for score in (*ours.values(), *baselines.values())]
    reachable = max([rulers["hindsight"] or 0, *met])
    bound = rulers["bound"]
    return {
        "trace": case.name,
        "scale": f"1/{scale}" if scale > 1 else "1",
        "num_gpus": num_gpus,
        "jobs": len(case.workload.jobs),
        **rulers,
        "reachable": reachable,
        "nobody_reaches": max(bound - reachable, 0.0),
        "ours": {
            policy: {
                **score,
                "fraction_of_bound": score["met"] / bound if bound else 1.0,
                "hindsight_wins": reachable - score["met"],
            }
            for policy, score in ours.items()
        },
        "best_baseline": best,
        "best_baseline_met": baselines[best]["met"] if best is not None else None,
        "baselines": baselines,
    }


def _in_short(row: dict[str, Any]) -> str:
    scores = ", ".join(
        f"{policy} {score['met']} ({score['late']} late, {score['certificate_failures']} certificates wrong)"
        for policy, score in row["ours"].items()
    )
    best = f", {row['best_baseline']} {row['best_baseline_met']}" if row["best_baseline"] else ""
    return f"{row['trace']} on {row['num_gpus']} GPUs: bound {row['bound']:.1f}, {scores}{best}"


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all rows, by policy: what must be none, and the worst share of the bound."""
    policies = dict.fromkeys(policy for row in rows for policy in row["ours"])
    summary = dict[str, Any]()
    for policy in policies:
        scores = [row["ours"][policy] for row in rows]
        summary[policy] = {
            "runs": len(scores),
            "met": sum(score["met"] for score in scores),
            "late": sum(score["late"] for score in scores),
            "certificates_checked": sum(score["certificates_checked"] for score in scores),
            "certificate_failures": sum(score["certificate_failures"] for score in scores),
            "lowest_fraction_of_bound": min(score["fraction_of_bound"] for score in scores),
            "runs_below_best_baseline": sum(
                row["best_baseline_met"] is not None and row["best_baseline_met"] > row["ours"][policy]["met"]
                for row in rows
            ),
        }
    return summary
