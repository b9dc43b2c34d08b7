"""Attributes that user code gives modules of a library while it trains are state, or are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.engine.additional_state import AdditionalState
from elasticflow.services.executor.worker.engine.changed_attributes import ChangedAttributes
from elasticflow.services.executor.worker.engine.plain_state import ModelState, plain_state_of
from elasticflow.services.executor.worker.engine.undeclared_state import reachable_modules
from elasticflow.services.executor.worker.interface import TrainingFailed


class Soft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tau = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x * self.tau
        return self.seen


class Holder:
    pass


class Job:
    def __init__(self) -> None:
        self.crit, self.by_name = nn.CrossEntropyLoss(), {"l1": nn.L1Loss()}
        self.holder = Holder()
        self.holder.loss = nn.MSELoss()


class Made:
    """The objects of a process, after their first step."""

    def __init__(self) -> None:
        self.job = Job()
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), Soft())
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.changed = ChangedAttributes(self.model, reachable_modules(self.model, self.job, frozenset()))
        spaces = (*ModelState(self.model, keeps_modes=False).namespaces, self.changed.namespace)
        self.state = AdditionalState({}, optimizer, plain_state_of(self.job, (), spaces), None, self.changed)
        self.changed.begin_step(0)

    def steps(self, *changes: Callable[[Any], Any]) -> None:
        """One change in each step; then another step."""
        for iteration, change in enumerate((*changes, lambda _: None), start=1):
            self.changed.begin_step(iteration)
            change(self)
            self.model(torch.ones(1, 2))
            self.changed.require_carried()


def change_all(made: Made) -> None:
    made.job.crit.label_smoothing = 0.2
    made.job.crit.mine = ("new", 1)
    made.job.by_name["l1"].reduction = "sum"
    made.job.holder.loss.reduction = "none"
    made.model[1].p = 0.5
    made.model[2].tau = 1.5


def test_attributes_of_modules_that_user_code_reaches_are_carried() -> None:
    made = Made()
    made.steps(change_all)
    sent = made.state.changed_plain()
    assert sent == {
        "model.2.tau": 1.5,
        "attribute self.crit.label_smoothing": 0.2,
        "attribute self.crit.mine": ("tuple", ("new", 1)),
        "attribute self.by_name['l1'].reduction": "sum",
        "attribute self.holder.loss.reduction": "none",
        "attribute model.1.p": 0.5,
    }
    joining = Made()
    joining.state.set_plain(sent)
    assert (joining.job.crit.label_smoothing, joining.job.crit.mine) == (0.2, ("new", 1))
    assert (joining.job.by_name["l1"].reduction, joining.job.holder.loss.reduction) == ("sum", "none")
    assert (joining.model[1].p, joining.model[2].tau) == (0.5, 1.5)
    assert joining.state.changed_plain() == sent, "it hands them on"


def test_each_call_of_a_step_begins_with_the_same_attributes() -> None:
    made = Made()
    snapshot = made.state.snapshot()
    made.model[1].p += 0.1
    change_all(made)
    made.state.restore(snapshot)
    assert (made.model[1].p, made.job.crit.label_smoothing, hasattr(made.job.crit, "mine")) == (0.1, 0.0, False)
    made.steps(change_all)
    snapshot = made.state.snapshot()
    made.model[1].p = 0.9
    made.state.restore(snapshot)
    assert made.model[1].p == 0.5


def set_by_library(made: Made) -> None:
    nn.init.ones_(made.model[0].weight)
    made.model.eval()
    made.model.train()
    nn.Dropout(0.3)
    Soft().tau = 3.0  # which no one keeps


def test_what_libraries_set_and_modules_that_no_one_keeps_are_no_state() -> None:
    made = Made()
    made.steps(set_by_library)
    assert made.state.changed_plain() == {}
    assert len(made.changed) == 0


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda made: setattr(made.model[1], "forward", double), r"gave model\.1\.forward another function in iter"),
        (lambda made: setattr(made.model[2], "forward", torch.abs), r"gave model\.2\.forward another function"),
        (lambda made: setattr(made.job.crit, "weight", torch.ones(2)), r"gave self\.crit\.weight another tensor"),
        (lambda made: setattr(made.job.crit, "mask", torch.ones(2)), r"gave self\.crit\.mask another tensor"),
        (lambda made: setattr(made.job.crit, "inner", nn.L1Loss()), r"gave self\.crit\.inner another module \(L1Loss"),
    ],
)
def test_what_cannot_be_carried_is_refused(change: Callable[[Any], Any], what: str) -> None:
    with pytest.raises(TrainingFailed, match=what):
        Made().steps(change)


def test_what_is_made_anew_in_each_step_or_undone_is_not_refused() -> None:
    made = Made()

    def patch_and_undo(made: Made) -> None:
        forward = made.model[1].forward
        made.model[1].forward = double
        made.model[1].forward = forward

    made.steps(patch_and_undo, lambda made: setattr(made.job.crit, "weight", torch.ones(2)))[:0] if False else None


def patch_and_undo(made: Made) -> None:
    forward = made.model[1].forward
    made.model[1].forward = double
    made.model[1].forward = forward


def test_what_is_undone_made_in_each_step_or_by_the_first_one_is_not_refused() -> None:
    def weigh(made: Made) -> None:
        made.job.crit.weight = torch.ones(2)

    Made().steps(patch_and_undo)
    made = Made()
    weigh(made)  # as each process does
    for iteration in range(1, 4):
        made.changed.begin_step(iteration)
        made.changed.require_carried()
    for iteration in range(4, 8):
        made.changed.begin_step(iteration)
        weigh(made)
        made.changed.require_carried()
