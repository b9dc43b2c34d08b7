"""Plain state in modules, callbacks and trainers: what user code gives them, and nothing of their library."""

from typing import Any

import torch
from torch import nn

from elasticflow.services.executor.worker.engine.additional_state import AdditionalState
from elasticflow.services.executor.worker.engine.plain_state import ModelState, PlainState, namespace_of, plain_state_of


class Soft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.tau, self.history = 2.0, list[float]()


class Job:
    pass


class Loader(torch.utils.data.DataLoader[Any]):
    """A class of the user's, that derives from one of a library."""

    rate = 1.0


def model_with_state() -> tuple[nn.Module, AdditionalState]:
    model = nn.Sequential(Soft(), nn.Dropout(0.5))
    of_model = ModelState(model, keeps_modes=True).namespaces
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, AdditionalState({}, optimizer, plain_state_of(Job(), (), of_model))


def test_attributes_of_modules_and_which_parameters_and_modules_train_reach_another_process() -> None:
    (model, state), (joining, of_joining) = model_with_state(), model_with_state()
    soft = model[0]
    soft.tau, soft.extra = 1.5, "new"  # pyright: ignore[reportAttributeAccessIssue]
    soft.history.append(0.5)
    soft.inner.bias.requires_grad_(False)
    soft.inner.eval()
    of_joining.set_plain(state.changed_plain())
    other = joining[0]
    assert (other.tau, other.extra, other.history) == (1.5, "new", [0.5])
    assert [each.requires_grad for each in joining.parameters()] == [True, False]
    assert [each.training for each in joining.modules()] == [True, True, False, True]


def test_a_step_that_is_undone_leaves_no_trace_in_the_model() -> None:
    model, state = model_with_state()
    soft = model[0]
    snapshot = state.snapshot()
    soft.tau, soft.extra = 1.5, "new"  # pyright: ignore[reportAttributeAccessIssue]
    soft.inner.bias.requires_grad_(False)
    state.restore(snapshot)
    assert (soft.tau, hasattr(soft, "extra"), soft.inner.bias.requires_grad) == (2.0, False, True)


def test_what_a_library_gives_its_objects_is_no_state() -> None:
    loader = Loader([1, 2, 3], batch_size=2)
    loader.rate, loader.seen = 0.5, 3  # pyright: ignore[reportAttributeAccessIssue]
    space = namespace_of("loader.", loader)
    assert space is not None
    assert PlainState(lambda: [space]).read() == {"loader.rate": 0.5, "loader.seen": 3}
    assert namespace_of("layer.", nn.Linear(1, 1)) is None
