"""Artifacts in a folder that fsspec reaches: whole or not at all, and deleted by age."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from elasticflow.shared.runtime.artifact_folder import ArtifactFolder

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


def test_a_bucket_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bucket(MemoryFileSystem):
        protocol = ("s3", "s3a")
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            raise AssertionError("s3fs makes the bucket of this folder")

    monkeypatch.setattr("fsspec.core.url_to_fs", lambda _: (Bucket(), "bucket/models"))
    folder = ArtifactFolder("s3://bucket/models")
    folder.write("lab", "digest", [b"model"])
    out = io.BytesIO()
    folder.read("lab", "digest", out)
    assert out.getvalue() == b"model"
