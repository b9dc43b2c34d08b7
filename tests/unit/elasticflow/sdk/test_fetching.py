"""A fetched model as safetensors."""

from pathlib import Path

import pytest
import torch

from elasticflow.errors import NotConvertible
from elasticflow.sdk.fetching import _write_safetensors

safetensors = pytest.importorskip("safetensors.torch", reason="the extra safetensors is not installed")


def test_shared_and_strided_weights_are_written_whole(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    model = {"w": weight, "tied": weight, "turned": weight.T, "count": torch.tensor(3)}
    _write_safetensors(model, tmp_path / "model.safetensors")
    read = safetensors.load_file(tmp_path / "model.safetensors")
    assert {name: value.tolist() for name, value in read.items()} == {n: v.tolist() for n, v in model.items()}
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_state_that_has_more_than_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotConvertible, match="scale"):
        _write_safetensors({"w": torch.ones(1), "scale": 2.0}, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
