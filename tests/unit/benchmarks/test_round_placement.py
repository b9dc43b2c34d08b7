import numpy as np

from benchmarks.heterogeneous.rounds import WAITING, ActiveJob, place_round
from elasticflow.simulator.workload.workload import typed_pool
from tests.support.typed_jobs import active_job

POOL = typed_pool("1xfast,2xslow")
FAST, SLOW, TWO_SLOW, ALL = (1, 0), (0, 1), (0, 2), (1, 2)


def with_rounds(job: ActiveJob, *received_C: int) -> ActiveJob:
    job.received_rounds_C = np.array(received_C, float)
    job.num_rounds = 10
    return job


def test_the_share_that_received_the_smallest_part_of_its_rounds_is_first() -> None:
    served = with_rounds(active_job([FAST], [4.0]), 9)
    behind = with_rounds(active_job([FAST], [4.0]), 2)
    shares = [np.array([0.6]), np.array([0.4])]
    assert place_round([served, behind], shares, POOL) == [WAITING, 0]
    behind.received_rounds_C[0] = 8
    assert place_round([served, behind], shares, POOL) == [0, WAITING]


def test_a_share_that_was_never_served_is_first() -> None:
    served = with_rounds(active_job([FAST], [4.0]), 1)
    new = active_job([FAST], [4.0])
    assert place_round([served, new], [np.array([0.9]), np.array([0.1])], POOL) == [WAITING, 0]


def test_a_job_has_one_configuration_in_a_round() -> None:
    job = active_job([FAST, TWO_SLOW], [4.0, 2.0])
    assert place_round([job], [np.array([0.3, 0.7])], POOL) == [
        0
    ]  # two slow GPUs by its share, then the fast one is left


def test_jobs_without_a_share_take_what_is_left_on_the_fewest_gpus() -> None:
    placed_first = active_job([FAST], [4.0])
    without = [active_job([SLOW, TWO_SLOW], [1.0, 2.0]) for _ in range(2)]
    shares = [np.array([1.0]), np.zeros(2), np.zeros(2)]
    assert place_round([placed_first, *without], shares, POOL) == [0, 0, 0]


def test_a_job_grows_to_the_fastest_configuration_that_others_leave() -> None:
    job = active_job([SLOW, TWO_SLOW, ALL], [1.0, 2.0, 5.0])
    assert place_round([job], [np.array([1.0, 0.0, 0.0])], POOL) == [2]
    other = active_job([FAST], [4.0])
    assert place_round([job, other], [np.array([1.0, 0.0, 0.0]), np.array([1.0])], POOL) == [1, 0]


def test_of_two_jobs_the_one_with_less_attained_service_grows() -> None:
    jobs = [active_job([SLOW, ALL], [1.0, 5.0]), active_job([SLOW, ALL], [1.0, 5.0])]
    pool = typed_pool("1xfast,3xslow")
    shares = [np.array([1.0, 0.0])] * 2
    assert place_round(jobs, shares, pool) == [1, 0]
    jobs[0].left_iterations = 50.0
    assert place_round(jobs, shares, pool) == [0, 1]
