"""The model of training time: progress at a constant rate, and what a change of GPUs costs."""

import math

import pytest

from elasticflow.shared.messages.events import GenerationStarted, PlacedJob, PlacementDecided, PlanDecided
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.timing.training_time import Progress, TrainingTime, fitted_to, step_s, true_rate

COST = ResizeCost((1, 4), (5.0, 9.0))


def test_progress_begins_at_its_start_and_is_linear() -> None:
    progress = Progress(starts_s=10.0, iteration=3.0, iterations_per_s=2.0)
    assert [progress.iteration_at(at_s) for at_s in (0.0, 10.0, 10.25, 12.0)] == [3.0, 3.0, 3.5, 7.0]
    assert progress.reaches_s(7.0) == 12.0
    assert step_s(progress.iterations_per_s) == 0.5


def test_the_last_step_has_ended_at_the_instant_computed_for_it() -> None:
    progress = Progress(starts_s=0.1, iteration=0.0, iterations_per_s=3.0)
    for iteration in range(1, 1_000):
        assert progress.whole_steps(progress.reaches_s(iteration)) == iteration


def test_a_job_without_progress_reaches_no_iteration() -> None:
    assert Progress(starts_s=0.0, iteration=1.0, iterations_per_s=0.0).reaches_s(2.0) == math.inf


@pytest.mark.parametrize(("num_gpus", "rate"), [(1, 1.0), (2, 1.5), (3, 1.5), (4, 0.0)])
def test_survivors_train_as_on_the_next_smaller_power_of_two(num_gpus: int, rate: float) -> None:
    assert true_rate({1: 1.0, 2: 1.5}, num_gpus) == rate
    assert true_rate({1: 1.0, 2: 1.5}, num_gpus, speed=0.5) == rate / 2


def test_a_restart_and_a_switch_cost_what_the_number_of_gpus_costs() -> None:
    time = TrainingTime.of_cost(COST, switch_s=0.5)
    assert (time.starts_s(2, 100.0), time.starts_s(4, 100.0)) == (105.0, 109.0)
    assert (time.switches_s(2, 100.0), time.switches_s(4, 100.0)) == (105.5, 109.5)


def placed(generation: int, at_s: float) -> PlanDecided:
    job = PlacedJob(job_id="a", generation=generation, gpus=(GpuId("n", 0),))
    event = PlacementDecided(placements=(job,), at_s=at_s)
    return PlanDecided(service="placement", based_on=0, now_s=at_s, events=(event,))


def started(generation: int, at_s: float) -> GenerationStarted:
    return GenerationStarted(job_id="a", generation=generation, num_gpus=1, iteration=0, at_s=at_s)


def test_every_start_takes_the_median_of_the_recorded_ones() -> None:
    record = [placed(1, 0.0), started(1, 1.0), placed(2, 5.0), placed(3, 6.0), started(3, 8.0), None]
    record += [placed(4, 10.0), started(4, 17.0), started(4, 18.0)]
    assert fitted_to(record) == TrainingTime.of_cost(ResizeCost.flat(2.0))


def test_a_record_without_a_start_fits_no_model() -> None:
    assert fitted_to([placed(1, 0.0), started(2, 1.0)]) is None
