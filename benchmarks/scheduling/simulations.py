"""The time of whole simulations on one core, with and without checks of every certificate."""

from typing import Any

from benchmarks.scheduling.timing import timed
from benchmarks.scheduling.workloads import Case, cluster_of
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.simulator.trace.simulated_run import SimulatedRun, execute
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs

TWO_MONTHS = Recipe(num_jobs=15_000, cluster_gpus=1_024, load=0.7, median_gpu_hours=22.0)
SEED, DAY_S = 1, 86_400.0
WARM_UP_JOBS = 30


def two_months(known: Throughputs, share: float = 1.0) -> Case:
    """15,000 jobs over two months on 1,024 GPUs, or so much of them."""
    recipe = TWO_MONTHS
    workload = generate(recipe, known, SEED, "generated two months")
    case = Case(workload=workload, published_gpus=recipe.cluster_gpus)
    return case.first(int(share * recipe.num_jobs)) if share < 1 else case


def measure_simulation(case: Case) -> list[dict[str, Any]]:
    """One run without and one with verification."""
    warm_up()
    measure_run(case.first(WARM_UP_JOBS), verified=True)  # what is still compiled or loaded is not counted
    return [measure_run(case, verified=verified) for verified in (False, True)]


def measure_run(case: Case, *, verified: bool) -> dict[str, Any]:
    """One run, from its start. verified: every certificate is checked."""
    simulated_run = SimulatedRun(workload=case.workload, cluster=cluster_of(case.published_gpus))
    verification = simulated_run.verification() if verified else None
    simulation = simulated_run.simulation(verification)
    outcome, took = timed(lambda: execute(simulated_run, simulation, verification))
    jobs = case.workload.jobs
    return {
        "trace": case.name,
        "num_gpus": simulated_run.cluster.num_gpus,
        "jobs": len(jobs),
        "days": (jobs[-1].submitted_at_s - jobs[0].submitted_at_s) / DAY_S,
        "verified": verified,
        "wall_s": took.wall_s,
        "cpu_s": took.cpu_s,
        "messages": simulation.state.sequence,
        "cpu_ms_a_message": 1e3 * took.cpu_s / simulation.state.sequence,
        "met": outcome.result.num_met(),
        "late": outcome.result.num_late(),
        "certificate_failures": outcome.certificate_failures,
    }
