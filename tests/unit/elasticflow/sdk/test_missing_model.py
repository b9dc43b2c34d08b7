"""Given a job without a stored model, `eflow fetch` and `elasticflow.load` say why."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from elasticflow.cli.fetch import show
from elasticflow.client.artifacts import StoredArtifacts
from elasticflow.client.client import Client
from elasticflow.errors import NoModel
from elasticflow.sdk.fetching import fetch_with, save_model
from elasticflow.shared.messages.events import ArtifactsStored

STORED = StoredArtifacts(
    ArtifactsStored(job_id="j1", due=1, node_id="n", at_s=1.0), "lab", why_no_model="it has saved no checkpoint"
)


class HasNoModel:
    """In place of a client."""

    async def artifacts(self, job_id: str, *, timeout: object) -> StoredArtifacts:
        return STORED


def test_a_missing_model_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = cast(Client, HasNoModel())
    show(asyncio.run(fetch_with(client, "j1", tmp_path, "torch")))
    assert capsys.readouterr().out == "model  none: it has saved no checkpoint\nfile   none: it wrote none\n"
    with pytest.raises(NoModel, match="no model of job 'j1' is stored: it has saved no checkpoint"):
        asyncio.run(save_model(client, STORED, tmp_path / "model.pt"))
