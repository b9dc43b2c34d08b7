"""Where the processes of a job find its data."""

from pathlib import Path

import pytest

import elasticflow
from elasticflow.sdk.job_fields import uri_of
from tests.unit.elasticflow.sdk.test_job import Small


def test_the_path_of_data_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EF_DATA_train", "/mnt/train")
    monkeypatch.setenv("EF_DATA_DIR", "/var/pool")
    assert elasticflow.data_path("train") == Path("/mnt/train")
    for name in ("test", "DIR"):
        with pytest.raises(
            KeyError, match=f"this job has no data '{name}': it has train; submit it with --data {name}=URI"
        ):
            elasticflow.data_path(name)
    monkeypatch.delenv("EF_DATA_train")
    with pytest.raises(KeyError, match="it has none, or this is no process of a job"):
        elasticflow.data_path("train")


def test_paths_are_resolved_where_a_job_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    uris = {"a": uri_of("sets/../a"), "b": uri_of(Path("/mnt/b")), "c": uri_of("~/c"), "d": uri_of("gs://bucket/d")}
    assert uris == {
        "a": f"{tmp_path.as_uri()}/a",
        "b": "file:///mnt/b",
        "c": "file:///home/me/c",
        "d": "gs://bucket/d",
    }


def test_a_job_names_its_data() -> None:
    job = Small().set_data({"a": "s3://bucket/a", "b": "/mnt/b"}).set_data({"a": "s3://bucket/new"})
    assert job.set_deadline(within=60).spec().data == {"a": "s3://bucket/new", "b": "file:///mnt/b"}
    with pytest.raises(elasticflow.InvalidJob, match="data: must be without DIR"):
        Small().set_deadline(within=60).set_data({"DIR": "s3://bucket"}).spec()
