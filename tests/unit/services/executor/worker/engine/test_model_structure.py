"""A step that adds or removes a part of the model fails; one that gives a parameter new values does not."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from elasticflow.services.executor.worker.engine.model_structure import ModelStructure
from elasticflow.services.executor.worker.interface import TrainingFailed


def model() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    made.register_buffer("scale", torch.ones(1))
    return made


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda made: made.append(nn.Linear(1, 1)), "added the parameter 2.bias"),
        (lambda made: made.register_buffer("shift", torch.zeros(1)), "added the buffer shift"),
        (lambda made: prune.l1_unstructured(made[0], "weight", 0.5), "added the buffer 0.weight_mask"),
        (lambda made: made.register_parameter("scale_2", nn.Parameter(torch.ones(1))), "added the parameter scale_2"),
    ],
)
def test_a_changed_structure_fails_with_its_name(change: Callable[[Any], Any], what: str) -> None:
    structure = ModelStructure(made := model())
    change(made)
    with pytest.raises(TrainingFailed, match=rf"train\(\) {what} of the model in iteration 3"):
        structure.require_unchanged(3)


def double(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return 2 * output


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda made: made.__setitem__(0, nn.Linear(2, 2)), "replaced the module 0 of the model"),
        (lambda made: made.__setitem__(2, nn.Dropout(0.3)), "replaced the module 2 of the model"),
        (lambda made: setattr(made[0], "bias", nn.Parameter(torch.ones(2))), "replaced the parameter 0.bias"),
        (lambda made: made[1].register_forward_hook(double), r"called register_forward_hook\(\) of 1 in iteration 3"),
        (
            lambda made: made.register_forward_pre_hook(partial(double, 1)),
            r"register_forward_pre_hook\(\) of the model",
        ),
        (
            lambda made: made[0].weight.register_hook(lambda grad: 2 * grad),
            r"register_hook\(\) of the parameter 0.weight",
        ),
    ],
)
def test_a_replaced_part_and_a_later_hook_fail_with_their_name(change: Callable[[Any], Any], what: str) -> None:
    (made := model()).append(nn.Dropout(0.1))
    made[0].register_forward_hook(double)  # which each process does
    structure = ModelStructure(made)
    change(made)
    with pytest.raises(TrainingFailed, match=what):
        structure.require_unchanged(3)


def test_a_hook_of_a_library_or_of_one_step_and_a_like_module_change_nothing() -> None:
    (made := model()).append(nn.Dropout(0.1))
    structure = ModelStructure(made)
    made[0].register_forward_hook(nn.Identity())
    made[0].weight.register_hook(torch.abs)
    made[1].register_forward_hook(double).remove()
    made[2] = nn.Dropout(0.1)
    structure.require_unchanged(0)
    made[2] = nn.Dropout(0.2)
    with pytest.raises(TrainingFailed, match="replaced the module 2"):
        structure.require_unchanged(1)


def test_a_layer_without_parameters_is_added_in_the_first_step_at_most() -> None:
    structure = ModelStructure(made := model())
    made.append(nn.ReLU())
    structure.require_unchanged(0)
    made.append(nn.ReLU())
    with pytest.raises(TrainingFailed, match="added the module 3"):
        structure.require_unchanged(2)


def test_new_values_and_other_modules_change_no_structure() -> None:
    structure = ModelStructure(made := model())
    made.scale = torch.zeros(1)
    made.register_buffer("scale", torch.ones(1))
    nn.Sequential(nn.Linear(1, 1))
    structure.require_unchanged(0)
