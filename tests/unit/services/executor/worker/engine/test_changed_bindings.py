"""A variable that is bound to another module or function once is refused; one that is bound anew each time is not."""

from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from elasticflow.services.executor.worker.engine.changed_bindings import ChangedBindings
from elasticflow.services.executor.worker.interface import TrainingFailed

STEPS_OF_EPOCH = 3
Loop = Generator[None, None, None]


class Script:
    """The function of a script, paused where it waits for a batch."""

    watched = nullcontext
    is_last_part = True

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        next(loop)

    def loop_exits(self) -> tuple[str, ...]:
        return ()

    def script_frames(self) -> Iterator[FrameType]:
        yield self.loop.gi_frame


def steps_of_script(write: Callable[[], Loop]) -> list[str]:
    """What is named in its steps. As an elastic script does, it waits before an epoch, and before each later step."""
    script = Script(write())
    bindings = ChangedBindings(script)
    named = list[str]()
    for iteration in range(6 * STEPS_OF_EPOCH):
        bindings.begin_step(iteration)
        next(script.loop)
        named += bindings.step_ended(iteration)
    return named


def epochs() -> Iterator[int]:
    """Where the loop waits at the top of an epoch."""
    yield from range(100)


def rebinds_in_a_step() -> Loop:
    crit, iteration = nn.CrossEntropyLoss(), 0
    yield
    while True:
        iteration += 1
        if iteration == 7:
            crit = nn.CrossEntropyLoss(label_smoothing=0.2)
        crit(torch.ones(1, 2), torch.zeros(1, dtype=torch.long))
        yield


def rebinds_in_an_epoch() -> Loop:
    crit = nn.CrossEntropyLoss()
    for epoch in range(100):
        yield
        if epoch == 3:
            crit = nn.CrossEntropyLoss(label_smoothing=0.2)
        for step in range(STEPS_OF_EPOCH):
            crit(torch.ones(1, 2), torch.zeros(1, dtype=torch.long))
            if step < STEPS_OF_EPOCH - 1:
                yield


def rebinds_a_function() -> Loop:
    crit = functional.mse_loss
    yield
    for iteration in range(100):
        if iteration == 7:
            crit = functional.l1_loss
        crit(torch.ones(1), torch.zeros(1))
        yield


def rebinds_a_partial_function() -> Loop:
    crit: Any = partial(functional.huber_loss, delta=1.0)
    yield
    for iteration in range(100):
        crit = partial(functional.huber_loss, delta=1.0 if iteration < 7 else 2.0)
        yield
        crit(torch.ones(1), torch.zeros(1))


def drops_a_module() -> Loop:
    extra: Any = nn.L1Loss()
    yield
    for iteration in range(100):
        if iteration == 7:
            extra = None
        if extra is not None:
            extra(torch.ones(1), torch.zeros(1))
        yield


def rebinds_an_attribute() -> Loop:
    job = Job()
    yield
    for iteration in range(100):
        if iteration == 7:
            job.crit = nn.SmoothL1Loss()
        yield


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (rebinds_in_a_step, "bound crit to another CrossEntropyLoss until iteration 6"),
        (rebinds_in_an_epoch, "bound crit to another CrossEntropyLoss until iteration 11"),
        (rebinds_a_function, "bound crit to another function until iteration 7"),
        (rebinds_a_partial_function, "bound crit to another function until iteration 7"),
        (drops_a_module, "bound extra to None until iteration 7"),
        (rebinds_an_attribute, "bound job.crit to another SmoothL1Loss until iteration 8"),
    ],
)
def test_what_a_joining_worker_would_not_have_is_refused(write: Callable[[], Loop], what: str) -> None:
    with pytest.raises(TrainingFailed, match=what):
        steps_of_script(write)


def binds_anew_in_each_step_or_epoch() -> Loop:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layer, crit, alike = model[0], nn.CrossEntropyLoss(), nn.L1Loss()
    yield
    for iteration in range(100):
        crit = nn.CrossEntropyLoss(label_smoothing=iteration / 100)
        crit(torch.ones(1, 2), torch.zeros(1, dtype=torch.long))
        for layer in model:
            layer(torch.ones(1, 2))
        alike = nn.L1Loss()
        yield
        alike(torch.ones(1), torch.zeros(1))


def binds_anew_in_each_epoch() -> Loop:
    crit = nn.CrossEntropyLoss()
    for epoch in range(100):
        yield
        crit = nn.CrossEntropyLoss(label_smoothing=epoch / 100)
        for step in range(STEPS_OF_EPOCH):
            crit(torch.ones(1, 2), torch.zeros(1, dtype=torch.long))
            if step < STEPS_OF_EPOCH - 1:
                yield


def makes_it_when_it_is_missing() -> Loop:
    crit: Any = None
    yield
    for iteration in range(100):
        if crit is None and iteration > 4:
            crit = nn.L1Loss()
        yield


@pytest.mark.parametrize(
    "write", [binds_anew_in_each_step_or_epoch, binds_anew_in_each_epoch, makes_it_when_it_is_missing]
)
def test_what_each_process_binds_anew_is_not_named(write: Callable[[], Loop]) -> None:
    assert steps_of_script(write) == []


def keeps_the_best_model() -> Loop:
    model, best = nn.Linear(2, 2), None
    yield
    for iteration in range(100):
        if iteration in (5, 8):
            best = nn.Linear(2, 2)
        yield
    print(best, model)


def test_a_module_with_tensors_is_named_once() -> None:
    assert steps_of_script(keeps_the_best_model) == ["best"]


class Job:
    def __init__(self) -> None:
        self.crit: Any = nn.L1Loss()
        self.last: Any = nn.L1Loss()


def test_an_attribute_of_a_job_must_stay_unless_it_is_bound_anew_in_each_step() -> None:
    job = Job()
    bindings = ChangedBindings(job)
    for iteration in range(10):
        bindings.begin_step(iteration)
        job.last = nn.SmoothL1Loss(beta=1.0 + iteration)
        if iteration == 5:
            job.crit = nn.MSELoss()
        if iteration == 6:
            with pytest.raises(TrainingFailed, match=r"bound self\.crit to another MSELoss until iteration 6"):
                bindings.step_ended(iteration)
            return
        assert bindings.step_ended(iteration) == []
