"""A fetched model as safetensors."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from elasticflow.client.artifacts import StoredArtifacts
from elasticflow.client.client import Client
from elasticflow.errors import NotConvertible
from elasticflow.sdk import fetching
from elasticflow.sdk.fetching import _write_safetensors, fetch_with
from elasticflow.shared.messages.events import ArtifactsStored, StoredFile

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


class Stores:
    """In place of a client: a job's model, which is empty."""

    async def artifacts(self, job_id: str, *, timeout: object) -> StoredArtifacts:
        model = StoredFile(path="i1.pt", num_bytes=1, digest="a" * 64)
        return StoredArtifacts(ArtifactsStored(job_id=job_id, due=1, node_id="n", model=model, at_s=1.0), "lab")

    async def save(
        self, artifacts: StoredArtifacts, file: StoredFile, target: Path, on_written: Callable[[int], None]
    ) -> None:
        torch.save({}, target)


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError], ids=["second Ctrl-C", "Ctrl-C"])
def test_an_interrupted_conversion_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def interrupted(model: object, target: Path) -> None:
        target.write_bytes(b"half")
        raise error

    monkeypatch.setattr(fetching, "_write_safetensors", interrupted)
    (tmp_path / "model.pt").write_bytes(b"fetched before")
    with pytest.raises(error):
        asyncio.run(fetch_with(cast(Client, Stores()), "j1", tmp_path, "safetensors"))
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert (tmp_path / "model.pt").read_bytes() == b"fetched before"
