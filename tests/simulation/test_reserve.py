"""With k nodes in reserve no promise breaks while at most k are down at once (record 13), one after another."""

import os
from dataclasses import replace

import numpy as np
import pytest

from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.allocation.allocation import RowsWithoutPromise, allocate
from elasticflow.shared.scheduling.availability.fill import OUTAGE_S
from elasticflow.shared.scheduling.jobs.job_table import JobTable, SchedulableJob, end_s
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import promisable_gpus
from elasticflow.shared.state.nodes import PromisableGpus
from elasticflow.shared.state.pool import NodeState, PoolState
from elasticflow.simulator.trace.failures_and_speed_noise import Failures
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulated_run import Outcome, SimulatedRun, execute
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs
from tests.support.rings import few_daily

NUM_RUNS = int(os.environ.get("EF_FAILURE_RUNS", "50"))
BLOCK = 25  # runs of one test


def failing(seed: int, reserve_nodes: int, max_down: int) -> Outcome:
    """More jobs than the cluster can run, with tight deadlines, while nodes fail as often as allowed."""
    cluster = ClusterShape(num_nodes=(3, 4, 6)[seed % 3], gpus_per_node=(2, 4)[seed % 2])
    recipe = Recipe(
        num_jobs=12,
        cluster_gpus=cluster.num_gpus,
        load=2.0,
        median_gpu_hours=0.5,
        gpu_hours_sigma=1.0,
        tightness=(0.7, 1.1),
        best_effort_share=0.1,
    )
    simulated_run = SimulatedRun(
        workload=generate(recipe, read_throughputs(bundled_throughputs()), seed),
        cluster=cluster,
        policy=("selective", "first-come")[seed // 2 % 2],
        reserve_nodes=reserve_nodes,
        failures=Failures(
            seed=seed, mean_up_s=OUTAGE_S / 2, mean_down_s=(60.0, 1_200.0)[seed // 4 % 2], max_down=max_down
        ),
    )
    verification = simulated_run.verification()
    return execute(simulated_run, simulated_run.simulation(verification), verification)


def numbers_of(results: list[Result]) -> tuple[int, int, int]:
    """Promises, broken promises, and losses of a node."""
    return (
        sum(result.num_admitted for result in results),
        sum(result.num_late() for result in results),
        sum(result.num_outages for result in results),
    )


@pytest.mark.parametrize(
    ("num_nodes", "first"),
    few_daily([(1, 0), (2, NUM_RUNS), *((1, first) for first in range(BLOCK, NUM_RUNS, BLOCK))], 2),
)
def test_no_promise_breaks_with_as_many_nodes_down_as_are_in_reserve(num_nodes: int, first: int) -> None:
    outcomes = [failing(seed, num_nodes, num_nodes) for seed in range(first, first + BLOCK)]
    assert [(outcome.result.num_late(), outcome.failures) for outcome in outcomes] == [(0, ())] * len(outcomes)
    num_admitted, _, num_outages = numbers_of([outcome.result for outcome in outcomes])
    assert num_admitted > 5 * len(outcomes)
    assert num_outages > 2 * len(outcomes)


def test_without_a_reserve_promises_break() -> None:
    _, num_late, _ = numbers_of([failing(seed, 0, 1).result for seed in (13, 22, 31)])
    assert num_late > 0


def pool(*sizes: int, down: tuple[int, ...] = (), left: tuple[int, ...] = (), reserve: int) -> PoolState:
    nodes = {
        f"node-{index}": NodeState(
            node_id=f"node-{index}",
            incarnation="0",
            num_gpus=size,
            device="cuda",
            alive=index not in (*down, *left),
            since_s=0.0,
            left=index in left,
        )
        for index, size in enumerate(sizes)
    }
    return PoolState(config=PoolConfig(reserve_nodes=reserve), nodes=Map(nodes))


def test_promisable_gpus_are_those_left_without_the_largest_nodes() -> None:
    assert promisable_gpus(pool(8, 4, 4, reserve=0)) == (16,)
    assert promisable_gpus(pool(8, 4, 4, reserve=1)) == (8, 16)
    assert promisable_gpus(pool(8, 4, 4, 2, reserve=2)) == (6, 10, 18)
    assert promisable_gpus(pool(8, 4, reserve=2)) == (0, 4, 12)


def test_promisable_gpus_do_not_shrink_when_nodes_fail_and_rejoin() -> None:
    for down in ((), (0,), (1,), (2,)):
        assert promisable_gpus(pool(8, 4, 4, down=down, reserve=1))[0] == 8
    assert promisable_gpus(pool(8, 4, 4, down=(0, 1), reserve=1)) == (4,)
    assert promisable_gpus(pool(8, 4, 4, left=(2,), reserve=1))[0] == 4, "it will not be back"


JOB = SchedulableJob(
    job_id="a",
    curve=ScalingCurve((1, 2, 4), (1.0, 1.8, 3.0)),
    remaining_iterations=5_000.0,
    deadline_s=6_000.0,
    resize_cost=ResizeCost((1, 2), (10.0, 20.0)),
    reserve_nodes=1,
    notice_s=5.0,
)


def plan_of(job: SchedulableJob, num_gpus: int = 4) -> AdmissionPlan:
    table = JobTable.of([job])
    return AdmissionPlan(table, [0], PromisableGpus(num_gpus), 0.0)


def test_a_schedule_has_time_for_a_stop_at_once_and_in_every_ten_minutes() -> None:
    (schedule,) = plan_of(JOB).schedules.values()
    ends_s = end_s(schedule)
    assert [num_gpus for _, _, num_gpus in schedule] == [1]
    assert ends_s == pytest.approx(10.0 + 5_000.0 + 15.0 * (1 + ends_s / OUTAGE_S), abs=0.1)


def test_a_schedule_holds_after_each_failure_and_is_not_moved_by_it() -> None:
    """A node fails every ten minutes from the first second on, and each failure hits the job."""
    plan = plan_of(JOB)
    (schedule,) = plan.schedules.values()
    left, at_s, ready_s, num_failures = JOB.remaining_iterations, 0.0, 10.0, 0
    while True:
        fails_s = at_s + (OUTAGE_S if num_failures else 1.0)
        worked_s = max(fails_s - max(at_s, ready_s), 0.0)
        if worked_s >= left:
            break
        left -= worked_s
        at_s, ready_s, num_failures = fails_s, fails_s + 15.0, num_failures + 1
        held = replace(JOB, remaining_iterations=left, current_num_gpus=0, stalled_until_s=-np.inf)
        table = JobTable.of([held])
        table.write_schedule(0, [number for segment in schedule for number in segment])
        after = AdmissionPlan(table, [0], PromisableGpus(4), at_s + 5.0)
        assert after.late == ()
        assert after.schedules["a"][-1].end_s == schedule[-1].end_s
    assert num_failures == 9
    assert max(at_s, ready_s) + left <= end_s(schedule)


def test_jobs_without_a_promise_may_use_the_reserve() -> None:
    plan = plan_of(JOB)
    best_effort = replace(JOB, job_id="b", deadline_s=np.inf, reserve_nodes=0)
    rows = [plan.append(best_effort)]
    assert allocate(plan, RowsWithoutPromise(rows)).num_gpus_by_job == {"a": 2, "b": 2}
    plan = plan_of(JOB)
    rows = [plan.append(best_effort)]
    lent = allocate(plan, RowsWithoutPromise(rows), num_lent=4).num_gpus_by_job
    assert lent == {"a": 2, "b": 4}
