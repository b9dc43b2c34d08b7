"""A step that adds or removes a part of the model fails; one that gives a parameter new values does not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from elasticflow.services.executor.worker.engine.training_step import ModelStructure
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


def test_new_values_and_other_modules_change_no_structure() -> None:
    structure = ModelStructure(made := model())
    made.scale = torch.zeros(1)
    made.register_buffer("scale", torch.ones(1))
    nn.Sequential(nn.Linear(1, 1))
    structure.require_unchanged(0)
