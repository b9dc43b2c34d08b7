"""The model of training time: progress at a constant rate, and what a change of GPUs costs."""

import math

import pytest

from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.timing.training_time import RatedProgress, TrainingTime, step_s, true_rate

COST = ResizeCost((1, 4), (5.0, 9.0))


def test_progress_begins_at_its_start_and_is_linear() -> None:
    progress = RatedProgress(starts_s=10.0, iteration=3.0, iterations_per_s=2.0)
    assert [progress.iteration_at(at_s) for at_s in (0.0, 10.0, 10.25, 12.0)] == [3.0, 3.0, 3.5, 7.0]
    assert progress.reaches_s(7.0) == 12.0
    assert step_s(progress.iterations_per_s) == 0.5


def test_the_last_step_has_ended_at_the_instant_computed_for_it() -> None:
    progress = RatedProgress(starts_s=0.1, iteration=0.0, iterations_per_s=3.0)
    for iteration in range(1, 1_000):
        assert progress.whole_steps(progress.reaches_s(iteration)) == iteration


def test_a_job_without_progress_reaches_no_iteration() -> None:
    assert RatedProgress(starts_s=0.0, iteration=1.0, iterations_per_s=0.0).reaches_s(2.0) == math.inf


@pytest.mark.parametrize(("num_gpus", "rate"), [(1, 1.0), (2, 1.5), (3, 1.5), (4, 0.0)])
def test_survivors_train_as_on_the_next_smaller_power_of_two(num_gpus: int, rate: float) -> None:
    assert true_rate({1: 1.0, 2: 1.5}, num_gpus) == rate
    assert true_rate({1: 1.0, 2: 1.5}, num_gpus, speed=0.5) == rate / 2


def test_a_restart_and_a_switch_cost_what_the_number_of_gpus_costs() -> None:
    time = TrainingTime.of_cost(COST, stop_s=0.5)
    for is_first in (False, True):
        assert (time.start_s(2, is_first=is_first), time.start_s(4, is_first=is_first)) == (5.0, 9.0)
    for joins in (False, True):
        assert (time.switch(joins=joins).prepare, time.switch(joins=joins).stop.seconds(4)) == (COST, 0.5)
    assert time.suspend.seconds(4) == 0.0
