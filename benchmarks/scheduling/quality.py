"""Kept promises, and met deadlines compared with bounds, on fewer and fewer GPUs.

Each score stands beside three others: the clairvoyant bound, which no scheduler can exceed; the best schedule known
with hindsight, every resize paid; and the best of all policies, which do not know the future and may break promises.
The distance from ours to the best policy can be gained by a better policy, the distance from there to the best
schedule only with hindsight. No known schedule reaches the bound.

Runs of a cluster whose nodes fail: with one node in reserve and one down at most, no promise breaks.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.scheduling.workloads import Case, cluster_of
from benchmarks.timing import new_workers, timed
from elasticflow.simulator.baselines.policy_catalogue import OURS
from elasticflow.simulator.bound import hindsight_schedule
from elasticflow.simulator.trace.failures_and_speed_noise import HOUR_S, Failures
from elasticflow.simulator.trace.simulated_run import SimulatedRun, execute
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs

OVERHEAD = "reference"
SCALES = (1, 2, 4, 8, 16, 32)  # parts of the published size
MAX_FAILURES_SHOWN = 3
MOVES = 5_000  # four times as many find up to two jobs more in a hundred, in four times the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A case on a part of the cluster that it was published with."""

    case: Case
    scale: int

    @property
    def num_gpus(self) -> int:
        return self.case.published_gpus // self.scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured. moves: of the search for the schedule with hindsight; 0: not searched for."""

    cases: tuple[Case, ...]
    scales: tuple[int, ...] = SCALES
    policies: tuple[str, ...] = OURS
    baselines: tuple[str, ...] = ()
    moves: int = MOVES

    def sizes(self) -> list[Size]:
        sizes = [Size(case=case, scale=scale) for case in self.cases for scale in self.scales]
        return [size for size in sizes if size.num_gpus]

    def row_of(self, size: Size, rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
        """What would be measured, if it is among these rows."""
        wanted = (size.case.name, size.num_gpus, len(size.case.workload.jobs), self.moves)
        for row in rows:
            measured = (row["trace"], row["num_gpus"], row["jobs"], row["moves"])
            if measured == wanted and set(self.baselines) <= row["baselines"].keys():
                return row
        return None


def measure_quality(plan: Plan, workers: int, known: Sequence[dict[str, Any]] = ()) -> Iterator[dict[str, Any]]:
    """A row for each case at each size, in this order, each as soon as it is there. known: rows of an earlier run."""
    pool = new_workers(workers)
    try:
        rows = [(size, plan.row_of(size, known)) for size in plan.sizes()]
        started = [(size, row or _started(pool, plan, size)) for size, row in rows]
        for size, row in started:
            yield _row(plan, size, row) if isinstance(row, _Started) else row
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Started:
    """What will be known of one row."""

    rulers: Future[dict[str, Any]]
    scores: dict[str, Future[dict[str, Any]]]  # by policy


def _started(pool: ProcessPoolExecutor, plan: Plan, size: Size) -> _Started:
    rulers = pool.submit(_rulers, size.case, size.num_gpus, plan.moves)
    policies = (*plan.policies, *plan.baselines)
    return _Started(rulers, {policy: pool.submit(_simulated, size.case, size.num_gpus, policy) for policy in policies})


def _rulers(case: Case, num_gpus: int, moves: int) -> dict[str, Any]:
    """What no scheduler can exceed, and what hindsight reaches."""
    simulated_run = SimulatedRun(workload=case.workload, cluster=cluster_of(num_gpus), overhead=OVERHEAD)
    bound, took = timed(simulated_run.bound)
    rulers: dict[str, Any] = {
        "feasible_alone": bound.feasible_alone,
        "bound": bound.jobs_met,
        "bound_exact": bound.exact,
        "bound_gpu_hours": bound.gpu_hours,
        "bound_cpu_s": took.cpu_s,
        "moves": moves,
        "hindsight_found": None,
        "hindsight_gpu_hours": None,
        "hindsight_cpu_s": None,
    }
    if moves:
        found, took = timed(
            lambda: hindsight_schedule(
                case.workload,
                simulated_run.cluster.num_gpus_by_type,
                simulated_run.resize_cost,
                moves=moves,
                bound=bound,
            )
        )
        rulers |= {
            "hindsight_found": found.met,
            "hindsight_gpu_hours": found.gpu_hours,
            "hindsight_cpu_s": took.cpu_s,
        }
    return rulers


def _simulated(case: Case, num_gpus: int, policy: str) -> dict[str, Any]:
    """One run, every certificate checked; baselines promise nothing and give none."""
    simulated_run = SimulatedRun(workload=case.workload, cluster=cluster_of(num_gpus), policy=policy, overhead=OVERHEAD)
    verification = simulated_run.verification()
    outcome, took = timed(lambda: execute(simulated_run, simulated_run.simulation(verification), verification))
    result = outcome.result
    return {
        "met": result.num_met(),
        "admitted": result.num_admitted,
        "late": result.num_late(),
        "gpu_hours": result.gpu_hours,
        "resizes": result.num_resizes,
        "certificates_checked": outcome.certificates_checked,
        "certificate_failures": outcome.certificate_failures,
        "unproven": outcome.unproven,
        "wrong": list(outcome.failures[:MAX_FAILURES_SHOWN]),
        "cpu_s": took.cpu_s,
        "wall_s": took.wall_s,
    }


def _row(plan: Plan, size: Size, started: _Started) -> dict[str, Any]:
    """hindsight: the most that any known schedule meets, be it found by the search, by us or by a baseline."""
    rulers = started.rulers.result()
    scores = {policy: score.result() for policy, score in started.scores.items()}
    baselines = {policy: scores[policy] for policy in plan.baselines}
    best = max(baselines, key=lambda name: baselines[name]["met"], default=None)
    hindsight = max(rulers["hindsight_found"] or 0, *(score["met"] for score in scores.values()))
    bound = rulers["bound"]
    return {
        "trace": size.case.name,
        "scale": f"1/{size.scale}" if size.scale > 1 else "1",
        "num_gpus": size.num_gpus,
        "jobs": len(size.case.workload.jobs),
        **rulers,
        "hindsight": hindsight,
        "beyond_hindsight": max(bound - hindsight, 0.0),
        "ours": {
            policy: {
                **scores[policy],
                "fraction_of_bound": scores[policy]["met"] / bound if bound else 1.0,
                "won_by_hindsight": hindsight - scores[policy]["met"],
            }
            for policy in plan.policies
        },
        "best_baseline": best,
        "best_baseline_met": baselines[best]["met"] if best is not None else None,
        "baselines": baselines,
    }


def gap_of(row: dict[str, Any], policy: str) -> tuple[int, int, float]:
    """What is missing to the bound: reached by another policy, by hindsight alone, by no known schedule."""
    met_online = max(score["met"] for score in (*row["ours"].values(), *row["baselines"].values()))
    return (
        met_online - row["ours"][policy]["met"],
        row["hindsight"] - met_online,
        row["beyond_hindsight"],
    )


def in_short(row: dict[str, Any]) -> str:
    """One line, as soon as it is known."""
    scores = ", ".join(
        f"{policy} {score['met']} ({score['late']} late, {score['certificate_failures']} certificates wrong)"
        for policy, score in row["ours"].items()
    )
    best = f", {row['best_baseline']} {row['best_baseline_met']}" if row["best_baseline"] else ""
    rulers = f"bound {row['bound']:.1f}, hindsight {row['hindsight']}"
    return f"{row['trace']} on {row['num_gpus']} GPUs: {rulers}, {scores}{best}"


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


# --- nodes that fail -----------------------------------------------------------------------------------


RECIPE = Recipe(num_jobs=100, cluster_gpus=64, load=1.0, best_effort_share=0.2)
RESERVE_NODES = 1
MEAN_UP_S, MEAN_DOWN_S = 24 * HOUR_S, 2 * HOUR_S  # of each of eight nodes: a failure every three hours
RUNS_AT_ONCE = 8  # that a worker is handed


def measure_failures(known: Throughputs, num_runs: int, workers: int) -> dict[str, Any]:
    """Run `seed` is the same workload and the same failures at any number of runs."""
    with new_workers(workers) as pool:
        runs = list(pool.map(partial(_life, known), range(num_runs), chunksize=RUNS_AT_ONCE))
    return {
        "runs": num_runs,
        "num_gpus": RECIPE.cluster_gpus,
        "reserve_nodes": RESERVE_NODES,
        "seeds": f"0 to {num_runs - 1}",
        "runs_with_an_outage": sum(life["outages"] > 0 for life in runs),
        **{
            name: sum(life[name] for life in runs)
            for name in ("outages", "jobs", "admitted", "met", "late", "certificates_checked")
        },
        "certificate_failures": sum(life["certificate_failures"] for life in runs),
        "runs_with_a_broken_promise": _seeds(runs, "late"),
        "runs_with_a_wrong_certificate": _seeds(runs, "certificate_failures"),
        "cpu_s_a_run": sum(life["cpu_s"] for life in runs) / num_runs,
        "wall_s_a_run": sum(life["wall_s"] for life in runs) / num_runs,
    }


def _life(known: Throughputs, seed: int) -> dict[str, Any]:
    simulated_run = SimulatedRun(
        workload=generate(RECIPE, known, seed),
        cluster=cluster_of(RECIPE.cluster_gpus),
        reserve_nodes=RESERVE_NODES,
        failures=Failures(seed=seed, mean_up_s=MEAN_UP_S, mean_down_s=MEAN_DOWN_S, max_down=RESERVE_NODES),
    )
    verification = simulated_run.verification()
    outcome, took = timed(lambda: execute(simulated_run, simulated_run.simulation(verification), verification))
    result = outcome.result
    return {
        "seed": seed,
        "jobs": len(result.fates),
        "outages": result.num_outages,
        "admitted": result.num_admitted,
        "met": result.num_met(),
        "late": result.num_late(),
        "certificates_checked": outcome.certificates_checked,
        "certificate_failures": outcome.certificate_failures,
        "cpu_s": took.cpu_s,
        "wall_s": took.wall_s,
    }


def _seeds(runs: Sequence[dict[str, Any]], what: str) -> list[int]:
    return [life["seed"] for life in runs if life[what]]
