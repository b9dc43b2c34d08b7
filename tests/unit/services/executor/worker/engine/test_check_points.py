"""In which steps the checks of the first steps run again."""

from itertools import pairwise

from elasticflow.services.executor.worker.engine.check_points import is_check_point


def check_points(steps_an_epoch: int, num_steps: int) -> list[int]:
    return [
        step
        for step in range(num_steps)
        if is_check_point(step, epoch=step // steps_an_epoch, begins_epoch=step % steps_an_epoch == 0)
    ]


def test_some_epochs_begin_with_checks_and_a_first_epoch_without_an_end_has_them_at_powers_of_two():
    assert check_points(3, 100) == [3, 6, 9, 21, 45, 93]
    assert check_points(100, 1000) == [4, 8, 16, 32, 64, 100, 200, 300, 700]
    assert check_points(10**9, 70) == [4, 8, 16, 32, 64]
    assert check_points(1, 20) == [1, 2, 3, 7, 15]


def test_what_begins_later_is_found_before_the_job_is_three_times_as_far_and_few_steps_are_repeated():
    for steps_an_epoch in (4, 7, 100, 10**9):
        found = check_points(steps_an_epoch, 20_000)
        assert len(found) < 32
        assert all(later <= 3 * earlier for earlier, later in pairwise(found))
