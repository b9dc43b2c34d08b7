"""The results of a load in another thread, and what is left of them after `close`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.errors import LoadNotOpened
from elasticflow.sdk.padding import LoadResults
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import TaskResult

SPEC = LoadSpec(task_function="jobs.fold:fold", task_s=1.0)
IN_FILE = TaskResult(index=0, file_digest="a" * 64, attempts=1, task_s=1.0, node_id="n")
SMALL = TaskResult(index=0, value=b"", attempts=1, task_s=1.0, node_id="n")


class FakeClient:
    """One load with these results, or none: then its name was used before."""

    def __init__(self, data_dir: Path, *results: TaskResult) -> None:
        self.data_dir, self.results = data_dir, results

    @asynccontextmanager
    async def connect(self, endpoint: Endpoint, *, tenant: str) -> AsyncGenerator["FakeClient"]:
        yield self

    async def results_of(self, inputs: Any, spec: LoadSpec, *, load_id: str, code: Any) -> AsyncGenerator[TaskResult]:
        if not self.results:
            raise LoadNotOpened(load_id, "a load of this name was used before: choose another one")
        for result in self.results:
            yield result

    async def result_folder(self, load_id: str) -> Path:
        return self.data_dir / "results" / f"{load_id}.1f"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "results" / "load.1f" / IN_FILE.file_digest
    file.parent.mkdir(parents=True)
    file.touch()
    return file


def opened(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> LoadResults:
    monkeypatch.setattr(Client, "connect", client.connect)
    endpoint = Endpoint(nats_url="nats://nowhere", pool="p", data_dir=client.data_dir)
    return LoadResults(endpoint, "lab", SPEC, None, "load", ())


def test_a_refused_opening_deletes_no_file(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = opened(FakeClient(tmp_path), monkeypatch)
    with pytest.raises(LoadNotOpened, match="used before"):
        list(results)
    results.close()
    assert file.exists(), "it may belong to the load that has the name"


@pytest.mark.parametrize(("result", "is_kept"), [(SMALL, True), (IN_FILE, False)])
def test_the_files_of_a_load_are_deleted_if_it_has_any(
    tmp_path: Path, file: Path, result: TaskResult, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = opened(FakeClient(tmp_path, result), monkeypatch)
    assert list(results) == [result]
    results.close()
    assert file.exists() == is_kept
