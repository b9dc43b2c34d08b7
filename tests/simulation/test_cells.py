"""Several simulated pools behind a front, with the rule of `eflow submit --pools`."""

import pytest

from benchmarks.scheduling.cells import by_quotes, in_turn, run_cells
from benchmarks.scheduling.workloads import cluster_of
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import Workload, bundled_throughputs

KNOWN = read_throughputs(bundled_throughputs())
RECIPE = Recipe(num_jobs=60, cluster_gpus=32, load=1.2, median_gpu_hours=1.0)


def workload(seed: int) -> Workload:
    return generate(RECIPE, KNOWN, seed)


def test_one_cell_behind_a_front_is_the_pool_itself() -> None:
    jobs = workload(1)
    assert len({job.submitted_at_s for job in jobs.jobs}) == len(jobs.jobs), "a pool decides on jobs of one instant"
    alone = SimulatedRun(workload=jobs, cluster=cluster_of(32)).simulation().run()
    _, (cell,), tries = run_cells(jobs, [32], by_quotes)
    assert [fate.admitted for fate in cell.fates] == [fate.admitted for fate in alone.fates]
    assert [fate.finished_at_s for fate in cell.fates] == [fate.finished_at_s for fate in alone.fates]
    assert set(tries) == {1}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_job_is_in_one_cell_and_no_promise_is_broken(seed: int) -> None:
    jobs = workload(seed)
    _, results, tries = run_cells(jobs, [8, 8, 8, 8], by_quotes)
    assert sum(result.num_late() for result in results) == 0
    for fates in zip(*(result.fates for result in results), strict=True):
        assert sum(fate.admitted for fate in fates) <= 1
    admitted = [any(fate.admitted for fate in fates) for fates in zip(*(r.fates for r in results), strict=True)]
    assert all(result.num_admitted > 0 for result in results), "the front uses all cells"
    assert sum(admitted) == sum(result.num_admitted for result in results)
    # a quote is what the cell then decides: no job that a quote promised is rejected, and asked elsewhere
    assert all(count == 1 for count, taken in zip(tries, admitted, strict=True) if taken)


def test_quotes_find_room_that_turns_do_not() -> None:
    jobs = workload(2)
    met = {
        order: sum(result.num_met() for result in run_cells(jobs, [24, 4, 4], order)[1])
        for order in (by_quotes, in_turn)
    }
    assert met[by_quotes] > met[in_turn]
