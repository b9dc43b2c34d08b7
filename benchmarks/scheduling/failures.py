"""Simulated runs of a cluster whose nodes fail: with one node in reserve and one down at most, no promise breaks."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.scheduling.timing import timed
from benchmarks.scheduling.workers import new_workers
from benchmarks.scheduling.workloads import cluster_of
from elasticflow.simulator.trace.failures_and_speed_noise import HOUR_S, Failures
from elasticflow.simulator.trace.simulated_run import SimulatedRun, execute
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs

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
