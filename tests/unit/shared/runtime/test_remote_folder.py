"""Artifacts in a folder that fsspec reaches: whole or not at all, and deleted by age."""

import gc
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

from elasticflow.shared.runtime.remote_folder import ArtifactFolder

DIGEST, OTHER = "a" * 64, "b" * 64
NOW_S = 4e9  # later than any test


@pytest.fixture(params=["file", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    fsspec.filesystem("memory").store.clear()
    return f"{tmp_path.as_uri()}/store/" if request.param == "file" else "memory://bucket/store"


def read(folder: ArtifactFolder, digest: str, tenant: str = "lab") -> bytes:
    out = io.BytesIO()
    folder.read(tenant, digest, out)
    return out.getvalue()


def test_a_file_is_found_by_tenant_and_digest_from_anywhere(uri: str) -> None:
    ArtifactFolder(uri).write("lab", DIGEST, iter([b"one, ", b"two"]))
    ArtifactFolder(uri).write("lab", DIGEST, iter([b"one, ", b"two"]))
    ArtifactFolder(uri).write("lab", OTHER, iter([]))
    assert (read(ArtifactFolder(uri), DIGEST), read(ArtifactFolder(uri), OTHER)) == (b"one, two", b"")
    with pytest.raises(FileNotFoundError):
        read(ArtifactFolder(uri), DIGEST, tenant="thief")


def test_a_file_that_cannot_be_read_to_its_end_does_not_appear(uri: str) -> None:
    def changed() -> Iterator[bytes]:
        yield b"one"
        raise ValueError("it changed")

    folder = ArtifactFolder(uri)
    with pytest.raises(ValueError, match="it changed"):
        folder.write("lab", DIGEST, changed())
    with pytest.raises(FileNotFoundError):
        read(folder, DIGEST)
    assert folder.delete_older(NOW_S) == 0, "no part of it is left"


def test_old_files_are_deleted(uri: str) -> None:
    folder = ArtifactFolder(uri)
    assert folder.delete_older(NOW_S) == 0, "there is no folder yet"
    for digest in (DIGEST, OTHER):
        folder.write("lab", digest, iter([b"x"]))
    assert folder.delete_older(1.0) == 0
    assert read(folder, DIGEST) == b"x"
    assert folder.delete_older(NOW_S) == 2
    assert folder.delete_older(NOW_S) == 0


def test_a_protocol_without_its_library_is_named() -> None:
    with pytest.raises(ImportError, match="s3fs"):
        ArtifactFolder("s3://bucket/store")


class Bucket(MemoryFileSystem):
    """As s3fs and gcsfs: a file appears under its name once it is closed, also by the end of its life."""

    protocol = ("s3", "s3a")
    num_discarded = 0

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        raise AssertionError("s3fs makes the bucket of this folder")

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("s3fs copies the file")

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        return Upload(self, path, mode) if mode == "wb" else super()._open(path, mode, *args, **kwargs)


class Upload(AbstractBufferedFile):
    def _upload_chunk(self, final: bool = False) -> Any:
        if final:
            if "mistyped" in self.path:
                raise FileNotFoundError("The specified bucket does not exist")
            MemoryFileSystem._open(self.fs, self.path, "wb", data=self.buffer.getvalue())
        return not final

    def discard(self) -> None:
        Bucket.num_discarded += 1


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ArtifactFolder:
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    monkeypatch.setattr(Bucket, "num_discarded", 0)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda uri: (Bucket(), uri.removeprefix("s3://")))
    return ArtifactFolder("s3://bucket/models")


def test_in_a_bucket_no_folder_is_made_and_nothing_is_renamed(bucket: ArtifactFolder) -> None:
    bucket.write("lab", DIGEST, [b"model"])
    assert read(bucket, DIGEST) == b"model"
    assert list(Bucket.store) == [f"/bucket/models/lab/{DIGEST}"]


def test_in_a_bucket_an_unfinished_file_is_discarded(bucket: ArtifactFolder) -> None:
    def changed() -> Iterator[bytes]:
        yield b"one"
        raise ValueError("it changed")

    with pytest.raises(ValueError, match="it changed"):
        bucket.write("lab", DIGEST, changed())
    gc.collect()
    assert (Bucket.num_discarded, Bucket.store) == (1, {})


def test_a_bucket_that_does_not_exist_is_named(bucket: ArtifactFolder) -> None:
    with pytest.raises(FileNotFoundError, match="s3://mistyped/models: its bucket does not exist: The specified"):
        ArtifactFolder("s3://mistyped/models").write("lab", DIGEST, [b"model"])
    assert Bucket.num_discarded == 1


def test_old_files_of_others_stay(tmp_path: Path) -> None:
    for name in ("notes.txt", f"lab/{DIGEST}", f"lab/{OTHER}.12ab", "lab/model.pt", f"lab/more/{DIGEST}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert ArtifactFolder(tmp_path.as_uri()).delete_older(NOW_S) == 2
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["lab/model.pt", f"lab/more/{DIGEST}", "notes.txt"]
