"""What workers send each other arrives unchanged, and runs no code in its reader."""

import os
import pickle
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticflow.services.executor.worker.group.compatibility_digest import decode_value, encode_value
from elasticflow.services.executor.worker.group.nested_tensors import TensorPlaceholder

PLACEHOLDER = TensorPlaceholder(3, (2, 5), torch.bfloat16, "cuda")


class Hostile:
    """Runs a program in each process that unpickles it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize(
    "value",
    [
        {"model": OrderedDict(weight=PLACEHOLDER), "step": 7, "loss": [0.5, None, True], "names": ("a", "b")},
        (0, 4, {1: {"exp_avg": torch.float32, "step": 3.0}}, [{"lr": 0.1, "betas": (0.9, 0.999)}]),
        None,
    ],
)
def test_plain_values_arrive_unchanged(value: Any) -> None:
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize("encode", [encode_value, partial(pickle.dumps, protocol=2)])
def test_a_hostile_value_runs_no_code(encode: Any, tmp_path: Path) -> None:
    with pytest.raises(pickle.UnpicklingError):
        decode_value(encode({"model": Hostile(tmp_path / "attack")}))
    assert not (tmp_path / "attack").exists()
