"""For how many steps a schedule is built, and whether the job takes as many."""

import warnings
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from elasticflow.services.executor.worker.data.sample_order import Epochs
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.scripts.schedules import JobLength, Plan, ScheduleCheck, plan_of
from elasticflow.shared.messages.job_spec import JobSpec


def length_of(iterations: int, *, batch: int = 32, size: int = 1024, max_epochs: int | None = None) -> JobLength:
    spec = JobSpec(training_function="m:C", global_batch_size=batch, max_iterations=iterations, deadline_in_s=1.0)
    length = JobLength(spec)
    length.epochs, length.max_epochs = Epochs(size=size, global_batch_size=batch), max_epochs
    return length


def linear_with_warm_up(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    """Of the form that transformers gives to LambdaLR."""
    return 1.0


MADE = {
    "OneCycleLR": (lambda o: schedules.OneCycleLR(o, 0.1, total_steps=96), 96),
    "OneCycleLR of epochs": (lambda o: schedules.OneCycleLR(o, 0.1, epochs=3, steps_per_epoch=32), 96),
    "CosineAnnealingLR": (lambda o: schedules.CosineAnnealingLR(o, 96), 96),
    "PolynomialLR": (lambda o: schedules.PolynomialLR(o, 96), 96),
    "LinearLR down": (lambda o: schedules.LinearLR(o, 1.0, 0.1, 96), 96),
    "LinearLR up": (lambda o: schedules.LinearLR(o, 0.1, 1.0, 96), None),
    "SequentialLR": (
        lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o), schedules.CosineAnnealingLR(o, 90)], [6]),
        96,
    ),
    "SequentialLR without end": (
        lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o), schedules.ConstantLR(o)], [6]),
        None,
    ),
    "of transformers": (
        lambda o: schedules.LambdaLR(o, partial(linear_with_warm_up, num_warmup_steps=1, num_training_steps=96)),
        96,
    ),
    "LambdaLR": (lambda o: schedules.LambdaLR(o, lambda step: 0.9**step), None),
    "ExponentialLR": (lambda o: schedules.ExponentialLR(o, 0.9), None),
    "CosineAnnealingWarmRestarts": (lambda o: schedules.CosineAnnealingWarmRestarts(o, 10), None),
}


@pytest.mark.parametrize(("make", "steps"), MADE.values(), ids=MADE)
def test_the_steps_of_a_schedule(make, steps):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = plan_of(make(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)))
    assert (plan.length if plan else None) == steps


@pytest.mark.parametrize(
    ("plan", "length"),
    [
        (Plan(name="Cosine", length=96), length_of(96)),
        (Plan(name="Cosine", length=96), length_of(200, max_epochs=3)),
        (Plan(name="Cosine", length=96), length_of(96, size=1000)),  # 3 loops of 32 batches, the last one smaller
        (Plan(name="Cosine", length=96), length_of(94, size=1000, max_epochs=3)),
        (Plan(name="Linear", length=10, may_end_early=True), length_of(96)),
        (Plan(name="Cosine", length=192), length_of(1)),  # a profiling run without a number of iterations
    ],
)
def test_a_schedule_for_the_jobs_steps_is_kept(plan, length):
    length.require(plan, is_by_epoch=False)


@pytest.mark.parametrize(
    ("plan", "length", "error"),
    [
        (
            Plan(name="Cosine", length=192),
            length_of(96),
            "the schedule Cosine is built for 192 steps, but the job takes 96, with global batches of 32 samples and "
            "--iterations 96: submit with --iterations 192, or build it for 96 steps",
        ),
        (Plan(name="Cosine", length=192), length_of(96, max_epochs=6), "submit with --iterations 192, or build it"),
        (Plan(name="Cosine", length=192), length_of(96, max_epochs=3), "and --iterations 96: build it for 96 steps"),
        (Plan(name="Cosine", length=192), length_of(500, max_epochs=3), "batches of 32 samples: build it for 96 steps"),
        (Plan(name="Cosine", length=48), length_of(96), "built for 48 steps, but the job takes 96"),
        (Plan(name="OneCycle", length=95, must_reach=True), length_of(96), "built for 95 steps, but the job takes 96"),
    ],
)
def test_another_number_of_steps_is_refused_with_both(plan, length, error):
    with pytest.raises(TrainingFailed) as raised:
        length.require(plan, is_by_epoch=False)
    assert error in str(raised.value)


def checks_of(length: JobLength, *, steps_every: str | int, t_max: int, iterations: int, first: int = 0) -> None:
    """As a script's loop calls them, in a worker that trains from the first of these iterations on."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = schedules.CosineAnnealingLR(optimizer, t_max)
    check = ScheduleCheck(schedule, length)
    check.loop_begins()
    for iteration in range(iterations):
        assert length.epochs is not None
        epoch, epochs_done = (length.epochs.number(each) for each in (iteration, iteration + 1))
        rhythms = {"step": True, "epoch": epochs_done > epoch, "never": False}
        steps = rhythms[steps_every] if isinstance(steps_every, str) else (iteration + 1) % steps_every == 0
        schedule.last_epoch += steps
        if iteration >= first:
            check.has_stepped |= steps
            check.iteration_ends(epoch_ends=epochs_done > epoch, epochs_done=epochs_done)


def test_a_schedule_that_steps_once_an_epoch_is_compared_with_epochs():
    checks_of(length_of(320, max_epochs=10), steps_every="epoch", t_max=10, iterations=80)
    with pytest.raises(
        TrainingFailed, match=r"built for 10 epochs, but the job takes 5.* submit with --iterations 320"
    ):
        checks_of(length_of(160, max_epochs=10), steps_every="epoch", t_max=10, iterations=0)
    checks_of(length_of(40, max_epochs=40), steps_every="step", t_max=40, iterations=1)
    with pytest.raises(TrainingFailed, match="built for 40 epochs, but the job takes 2"):
        checks_of(length_of(40, max_epochs=40), steps_every="epoch", t_max=40, iterations=1)
    with pytest.raises(TrainingFailed, match="built for 10 steps, but the job takes 320"):
        checks_of(length_of(320, max_epochs=100), steps_every="step", t_max=10, iterations=1)


@pytest.mark.parametrize("t_max", [5, 9, 11, 70])
def test_a_schedule_for_another_number_of_epochs_is_refused_at_the_end_of_the_first(t_max):
    length = length_of(320, max_epochs=10)
    checks_of(length, steps_every="epoch", t_max=t_max, iterations=31)
    with pytest.raises(TrainingFailed, match=f"built for {t_max} epochs, but the job takes 10, .*: build it for 10 ep"):
        checks_of(length, steps_every="epoch", t_max=t_max, iterations=32)
    with pytest.raises(TrainingFailed, match=f"built for {t_max} epochs, but the job takes 10"):
        checks_of(length, steps_every="epoch", t_max=t_max, iterations=96, first=65)  # of a worker that joins


def test_without_a_limit_of_the_loop_a_schedule_for_more_epochs_than_the_job_has_is_refused():
    with pytest.raises(TrainingFailed, match=r"built for 20 epochs, .* takes 10, .* submit with --iterations 640, or"):
        checks_of(length_of(320), steps_every="epoch", t_max=20, iterations=32)
    checks_of(length_of(320), steps_every="epoch", t_max=5, iterations=160)  # the script may end its loop after five


@pytest.mark.parametrize("steps_every", ["epoch", 16, "never"])
def test_a_schedule_that_no_rhythm_brings_to_its_end_is_refused_in_the_first_step(steps_every):
    with pytest.raises(TrainingFailed) as raised:
        checks_of(length_of(320, max_epochs=10), steps_every=steps_every, t_max=12345, iterations=1)
    assert str(raised.value) == (
        "the schedule CosineAnnealingLR is built for 12345 steps, but the job takes 320, in 10 epochs, with global "
        "batches of 32 samples and --iterations 320: build it for 10 if it steps once an epoch, or for 320 if it steps "
        "once a step"
    )


@pytest.mark.parametrize(("steps_every", "t_max"), [(16, 20), (64, 5), (70, 4), ("never", 20)])
def test_a_schedule_of_another_rhythm_is_left_alone(steps_every, t_max):
    checks_of(length_of(320, max_epochs=10), steps_every=steps_every, t_max=t_max, iterations=320)


def test_the_last_epoch_may_be_one_that_the_job_does_not_end():
    for t_max in (9, 10):
        checks_of(length_of(300, max_epochs=20), steps_every="epoch", t_max=t_max, iterations=300)
    with pytest.raises(TrainingFailed, match="built for 8 epochs, but the job takes 10"):
        checks_of(length_of(300, max_epochs=20), steps_every="epoch", t_max=8, iterations=300)


def test_a_job_of_one_epoch_ends_whatever_its_schedule_does_behind_it():
    checks_of(length_of(32, max_epochs=1), steps_every="epoch", t_max=5, iterations=32)


@pytest.mark.parametrize("max_epochs", [None, 10])
def test_a_worker_that_joins_in_the_last_step_of_an_epoch_refuses_no_right_schedule(max_epochs):
    length = length_of(320, max_epochs=max_epochs)
    checks_of(length, steps_every="epoch", t_max=10, iterations=160, first=31)


def test_a_schedule_that_steps_with_the_loss_of_one_part_is_refused():
    plateau = schedules.ReduceLROnPlateau(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    check = ScheduleCheck(plateau, length_of(96))
    for iteration, loss in enumerate((0.5, torch.tensor(0.25))):
        for _ in range(2):
            check.require_same_numbers(iteration, (loss, "min"))
    with pytest.raises(TrainingFailed, match=r"ReduceLROnPlateau steps with \[0\.25\] .* with \[0\.125\]"):
        check.require_same_numbers(1, (0.125,))
