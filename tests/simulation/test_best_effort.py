"""Pools with promised jobs and others under each rule of best effort: every promise is kept, and every job ends."""

from dataclasses import replace

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import BestEffortRule
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulated_run import BEST_EFFORT_RULES, SimulatedRun, completion_numbers, execute
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload, bundled_throughputs

TABLES = read_throughputs(bundled_throughputs())
BUSY = Recipe(num_jobs=60, cluster_gpus=8, load=1.5, best_effort_share=0.6, soft_share=0.1, median_gpu_hours=0.2)


def run(workload: Workload, rule: BestEffortRule, num_gpus: int = 8, overhead: str = "1") -> Result:
    """The result; every certificate is right."""
    cluster = ClusterShape(num_nodes=1, gpus_per_node=num_gpus)
    simulated = SimulatedRun(workload=workload, cluster=cluster, best_effort=rule, overhead=overhead)
    verification = simulated.verification()
    outcome = execute(simulated, simulated.simulation(verification), verification)
    assert outcome.failures == ()
    return outcome.result


@pytest.mark.parametrize("rule", BEST_EFFORT_RULES)
@pytest.mark.parametrize("seed", range(3))
def test_promises_are_kept_and_all_jobs_end(rule: BestEffortRule, seed: int) -> None:
    drawn = generate(BUSY, TABLES, seed)
    jobs = (replace(job, tenant=f"tenant-{number % 3}") for number, job in enumerate(drawn.jobs))
    numbers = run(Workload.of("busy", jobs), rule).numbers()
    assert (numbers["late"], numbers["unfinished"]) == (0, 0)
    assert numbers["met"]


def small_job(number: int, submitted_at_s: float, num_iterations: int, tenant: str = "trace") -> TraceJob:
    curve = TABLES.curve("resnet50", 64)
    return TraceJob(
        job_id=f"job-{number:04}",
        submitted_at_s=submitted_at_s,
        num_iterations=num_iterations,
        model_name="resnet50",
        global_batch_size=64,
        deadline_s=None,
        job_class=JobClass.BEST_EFFORT,
        tenant=tenant,
        max_gpus=1,
        curve=replace(curve, num_gpus_L=(1,), iterations_per_s_L=curve.iterations_per_s_L[:1]),
        measured=curve,
    )


def stream_beside_a_long_job() -> Workload:
    """As in issue Q, at a fifth of its length: 97 % of the GPUs' time with one second for each start."""
    rate = TABLES.curve("resnet50", 64).throughput(1)
    short = (
        small_job(1 + 8 * batch + number, 1.0 + 100.0 * batch + number / 100, int(96 * rate))
        for batch in range(80)
        for number in range(8)
    )
    return Workload.of("starve", [small_job(0, 0.0, int(720 * rate)), *short])


@pytest.mark.parametrize(("rule", "most_slowdown", "most_stops"), [("shortest-first", 5.0, 40), ("fair", 1.1, 1)])
def test_a_long_job_is_not_starved_by_short_ones(rule: BestEffortRule, most_slowdown: float, most_stops: int) -> None:
    result = run(stream_beside_a_long_job(), rule)
    long, *_ = result.fates
    assert long.finished_at_s is not None
    assert long.finished_at_s <= most_slowdown * 720.0
    assert len(long.occupancies) <= most_stops
    numbers = completion_numbers(result)
    assert (numbers["max_slowdown_best_effort"] or 0.0) <= 5.0
    assert (numbers["max_stops_best_effort"] or 0.0) <= max(most_stops, 2)


def test_a_tenant_with_few_jobs_is_not_behind_one_with_many() -> None:
    rate = TABLES.curve("resnet50", 64).throughput(1)
    many = [small_job(number, 0.0, int(1_000 * rate), "many") for number in range(80)]
    few = [small_job(100 + number, 10.0, int(1_000 * rate), "few") for number in range(4)]

    def waits_s(rule: BestEffortRule) -> float:
        result = run(Workload.of("tenants", [*many, *few]), rule)
        ends_s = [fate.finished_at_s for fate in result.fates if fate.job.tenant == "few"]
        return max(ends_s, key=lambda end_s: end_s or 0.0) or 0.0

    assert waits_s("fair") == pytest.approx(1_011.0, abs=2.0)  # half of the GPUs at once
    assert waits_s("shortest-first") > 5_000.0
