"""Costs of each kind of change and speeds, read off a recorded ledger."""

from typing import Any

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import (
    GenerationStarted,
    JobFinished,
    PlacedJob,
    PlacementDecided,
    PlanDecided,
    WorkersStopped,
)
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, ResizeCost
from elasticflow.simulator.timing.recorded_times import fitted_to, recorded_times
from elasticflow.simulator.timing.training_time import SwitchTime, TrainingTime
from elasticflow.simulator.trace.simulation import spec_of
from tests.support.trace_jobs import job


def placed(generation: int, at_s: float, *gpus: int, job_id: str = "a") -> PlanDecided:
    one = PlacedJob(job_id=job_id, generation=generation, gpus=tuple(GpuId("n", gpu) for gpu in gpus))
    event = PlacementDecided(placements=(one,), at_s=at_s)
    return PlanDecided(service="placement", based_on=0, now_s=at_s, events=(event,))


def started(
    generation: int,
    at_s: float,
    *,
    num_gpus: int = 1,
    iteration: int = 0,
    stop_s: float | None = None,
    job_id: str = "a",
) -> GenerationStarted:
    resize = None
    if stop_s is not None:
        resize = ResizeTimeline(prepare_s=0.0, stop_s=stop_s, first_step_s=0.5, bytes_moved=0)
    return GenerationStarted(
        job_id=job_id, generation=generation, num_gpus=num_gpus, iteration=iteration, resize=resize, at_s=at_s
    )


def stopped(generation: int, at_s: float, job_id: str = "a") -> WorkersStopped:
    return WorkersStopped(job_id=job_id, generation=generation, node_id="n", at_s=at_s)


def submitted() -> PlanDecided:
    command = SubmitJob(job_id="a", tenant="t", spec=spec_of(job("a", 10, 0.0, 99.0)))
    return PlanDecided(service="admission", based_on=0, now_s=0.0, commands=(command,), events=())


def test_every_start_takes_the_median_of_the_recorded_ones() -> None:
    record = [placed(1, 0.0, 0), started(1, 1.0), placed(2, 5.0, 0), placed(3, 6.0, 0), started(3, 8.0), None]
    record += [placed(4, 10.0, 0), started(4, 17.0), started(4, 18.0)]
    assert fitted_to(record) == TrainingTime.of_cost(ResizeCost.flat(2.0))


def test_a_record_without_a_start_fits_no_model() -> None:
    assert fitted_to([placed(1, 0.0, 0), started(2, 1.0)]) is None


def changes() -> list[Any]:
    """First start 2 s, growth 3 s and a stop of 0.25 s, shrink 1 s and 0.125 s, suspension 0.5 s, restart 4 s."""
    return [
        submitted(),
        placed(1, 0.0, 0),
        started(1, 2.0),
        placed(2, 10.0, 0, 1),
        started(2, 13.75, num_gpus=2, iteration=11, stop_s=0.25),  # its first step began at 13.25, the stop at 13
        placed(3, 20.0, 1),
        started(3, 21.625, num_gpus=1, iteration=24, stop_s=0.125),
        placed(4, 30.0),
        stopped(3, 30.5),
        placed(5, 40.0, 0),
        started(5, 44.0, iteration=32),
        JobFinished(job_id="a", generation=5, iteration=42, condition="max_iterations", at_s=54.0),
    ]


def test_each_kind_of_change_has_its_own_cost() -> None:
    assert fitted_to(changes()) == TrainingTime(
        first_start=ResizeCost.flat(2.0),
        restart=ResizeCost.flat(4.0),
        grow=SwitchTime(prepare=ResizeCost((2,), (3.0,)), stop=ResizeCost((2,), (0.25,))),
        shrink=SwitchTime(prepare=ResizeCost.flat(1.0), stop=ResizeCost.flat(0.125)),
        suspend=ResizeCost.flat(0.5),
    )


def test_speeds_leave_out_stops_and_what_a_suspension_throws_away() -> None:
    times = recorded_times(changes())
    assert times.trained["model", 1] == [(11, 11.0), (10, 10.0)]
    assert times.trained["model", 2] == [(13, 7.75)]
    assert times.iterations_per_s("model") == {1: pytest.approx(1.0), 2: pytest.approx(13 / 7.75)}
    assert times.iterations_per_s("another") == {}


def test_a_job_that_waits_for_the_gpu_of_another_one_starts_when_that_is_free() -> None:
    record = [placed(1, 0.0, 0, job_id="b"), started(1, 1.0, job_id="b"), placed(2, 5.0, job_id="b"), placed(1, 5.0, 0)]
    record += [stopped(1, 5.75, job_id="b"), started(1, 6.75)]
    times = recorded_times(record)
    assert times.first_start[1] == [1.0, 1.0]
    assert times.suspend[1] == [0.75]


def test_kinds_that_were_not_recorded_take_as_long_as_the_nearest_one() -> None:
    grown = fitted_to(changes()[:5])
    assert grown is not None
    assert grown.restart == grown.first_start == ResizeCost.flat(2.0)
    assert grown.shrink == grown.grow
    assert grown.suspend == FREE
