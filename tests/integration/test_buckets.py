"""A real pool with a real S3 client: models in a bucket, data from a bucket, and a bucket that is missing."""

import asyncio
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
from elasticflow.shared.messages.job_spec import JobClass
from tests.support.executor_process import ROOT
from tests.support.real_pool import POOL, RunningPool, job, running_pool

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of these libraries


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server of S3 on this machine, with one bucket. Executors and this process reach it by their environment."""
    import boto3  # pyright: ignore[reportMissingImports]

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    variables = {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "EF_ISOLATION": "none",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="pool")
    yield
    server.stop()


async def trained(pool: RunningPool, job_id: str, **changes: object) -> str:
    """The job's history, once its artifacts are stored or known not to be."""
    settings = {"step_s": 0.01, "large_bytes": 20_000_000}  # s3fs uploads it in parts
    function = "tests.support.user_code.artifact_jobs:Writes"
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


async def test_a_model_and_data_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: None) -> None:
    import boto3  # pyright: ignore[reportMissingImports]

    boto3.client("s3").put_object(Bucket="pool", Key="sets/words/deep/w.txt", Body=b"many-words")
    monkeypatch.setenv("EF_ARTIFACT_STORE", "s3://pool/models")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        await trained(pool, "with-data", data={"words": "s3://pool/sets/words"})
        (copy,) = (pool.data_dir / "data" / "lab").iterdir()
        assert (copy / "words" / "deep" / "w.txt").read_text() == "many-words"
        fetched = await fetch_with(pool.client, "with-data", tmp_path / "here", "torch")
        assert fetched.model is not None
        assert torch.load(fetched.model, weights_only=True)
        assert {path.name: path.stat().st_size for path in fetched.files}["large.bin"] == 20_000_000
        loaded = await asyncio.to_thread(elasticflow.load, "with-data", nats_url=pool.url, pool=POOL, tenant="lab")
        assert set(loaded) == set(torch.load(fetched.model, weights_only=True))
        await can_be_fetched_as_safetensors(pool, "with-data", tmp_path / "safe", loaded)
        with monkeypatch.context() as elsewhere:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                elsewhere.delenv(name)
            elsewhere.setenv("AWS_EC2_METADATA_DISABLED", "true")
            s3fs.S3FileSystem.clear_instance_cache()
            with pytest.raises(ArtifactNotReadable, match=r"no credentials .*: AWS_ACCESS_KEY_ID and AWS_SECRET"):
                await fetch_with(pool.client, "with-data", tmp_path / "denied", "torch")
        s3fs.S3FileSystem.clear_instance_cache()
        keys = [each["Key"] for each in boto3.client("s3").list_objects_v2(Bucket="pool", Prefix="models/")["Contents"]]
        assert all(len(key.removeprefix("models/lab/")) == 64 for key in keys), keys
        absent = await trained(pool, "absent", data={"words": "s3://absent/set"})
        assert "its data words (s3://absent/set) cannot be had: it does not exist: The specified bucket" in absent


async def test_a_missing_bucket_is_named_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: None
) -> None:
    import boto3  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("EF_ARTIFACT_STORE", "s3://mistyped/models")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        history = await trained(pool, "job")
        assert "bucket does not exist" in history, history
    assert [bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]] == ["pool"]
