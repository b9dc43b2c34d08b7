"""What a node uploads of a job's folder, in which users' code may write and link anything."""

import asyncio
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pytest

from elasticflow.client.artifacts import StoredArtifacts, _copy
from elasticflow.errors import ArtifactGone, ArtifactNotReadable
from elasticflow.services.executor.decisions.local_events_and_actions import ArtifactsUploaded, StoreArtifacts
from elasticflow.services.executor.processes import artifact_uploads
from elasticflow.services.executor.processes.artifact_uploads import MAX_NAMED, ArtifactUploads, open_below
from elasticflow.services.executor.processes.prepared_folders import take_folders
from elasticflow.services.executor.worker.process.working_folder import copy_inputs
from elasticflow.shared.errors import DamagedObject, StorageFull, Unavailable
from elasticflow.shared.messages.events import ArtifactsStored, StoredFile
from elasticflow.shared.messages.limits import MAX_FEW_ITEMS
from elasticflow.shared.messages.pool_config import DAY_S, PoolConfig
from elasticflow.shared.messages.worker_protocol.from_worker import model_file_name
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.remote_folder import ArtifactFolder
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from tests.support.virtual_clock import VirtualClock

POOL, NODE, IDENTITY = "p", "node-0", "of this job"
BUCKET = streams.artifact_bucket(POOL)


def folder_of(data_dir: Path) -> Path:
    folder = data_dir / "checkpoints" / "a"
    (folder / "artifacts").mkdir(parents=True)
    (folder / "model").mkdir()
    return folder


def order(max_bytes: int = 1 << 30) -> StoreArtifacts:
    return StoreArtifacts(job_id="a", tenant="lab", identity=IDENTITY, generation=2, due=5, max_bytes=max_bytes)


def uploads(bus: MemoryBus, data_dir: Path) -> ArtifactUploads:
    return ArtifactUploads(bus, POOL, data_dir, NODE, note=lambda _: None, log=SilentLog())


async def uploaded(data_dir: Path, max_bytes: int = 1 << 30, bus: MemoryBus | None = None) -> ArtifactsUploaded:
    bus = bus or MemoryBus()
    await bus.ensure_pool(POOL)
    return await uploads(bus, data_dir).upload(order(max_bytes))


def reasons(uploaded: ArtifactsUploaded, data_dir: Path) -> dict[str, str]:
    folder = f"{data_dir}/checkpoints/a/"
    return {file.path.removeprefix(folder): file.reason for file in uploaded.unstored}


async def stored_bytes(bus: MemoryBus, file: StoredFile) -> bytes:
    names = [streams.artifact_name("lab", NODE, file.digest, i) for i in range(streams.num_pieces(file.num_bytes))]
    return b"".join([await bus.get_object(BUCKET, name, max_bytes=streams.ARTIFACT_PIECE_BYTES) for name in names])


async def test_files_of_an_earlier_job_of_the_same_id_are_not_stored(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "artifacts" / "secret").touch()
    (folder / "model" / f"i{3:014d}.pt").touch()
    take_folders(tmp_path, "a", "of an earlier job")
    found = await uploaded(tmp_path)
    assert (found.model, found.files, found.num_unstored) == (None, (), 0)
    take_folders(tmp_path, "a", IDENTITY)
    folder_of(tmp_path).joinpath("artifacts", "own").touch()
    assert [file.path for file in (await uploaded(tmp_path)).files] == ["own"]


async def test_the_newest_model_and_all_files_are_stored_in_pieces(tmp_path: Path) -> None:
    folder, bus = folder_of(tmp_path), MemoryBus()
    large = os.urandom(2 * streams.ARTIFACT_PIECE_BYTES + 1)
    (folder / "artifacts" / "plots").mkdir()
    (folder / "artifacts" / "plots" / "large").write_bytes(large)
    (folder / "artifacts" / "empty").touch()
    for iteration in (3, 12):
        (folder / "model" / f"i{iteration:014d}.pt").write_bytes(b"weights %d" % iteration)
    (folder / "model" / "77.unfinished").write_bytes(b"part")
    found = await uploaded(tmp_path, bus=bus)
    assert found.model is not None
    assert (found.iteration, await stored_bytes(bus, found.model)) == (12, b"weights 12")
    assert [(file.path, file.num_bytes) for file in found.files] == [("empty", 0), ("plots/large", len(large))]
    assert await stored_bytes(bus, found.files[1]) == large
    assert found.unstored == ()


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_model_that_was_damaged_after_it_was_written_is_not_stored(tmp_path: Path, is_damaged: bool) -> None:
    folder = folder_of(tmp_path)
    name = model_file_name(12, hashlib.sha256(b"weights").hexdigest())
    (folder / "model" / name).write_bytes(b"weightz" if is_damaged else b"weights")
    found = await uploaded(tmp_path)
    assert (found.model is None) == is_damaged
    assert list(reasons(found, tmp_path)) == ([f"model/{name}"] if is_damaged else [])
    assert all("damaged after it was written" in reason for reason in reasons(found, tmp_path).values())


async def test_what_a_job_wrote_in_its_working_folder_is_stored_and_what_was_copied_there_is_not(
    tmp_path: Path,
) -> None:
    folder, bus = folder_of(tmp_path), MemoryBus()
    (folder / "artifacts" / "kept").write_text("kept")
    code = tmp_path / "code"
    for name in ("train.py", "data/changed.txt", "data/same.txt", "__pycache__/train.pyc"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("old")
    (folder / "files").mkdir()
    copy_inputs(code, folder, "digest")
    (folder / "files" / "data" / "changed.txt").write_text("new")
    (folder / "files" / "gpt.pt").write_text("weights")
    (folder / "files" / "__pycache__").mkdir(exist_ok=True)
    (folder / "files" / "__pycache__" / "train.pyc").touch()
    found = await uploaded(tmp_path, bus=bus)
    assert [file.path for file in found.files] == ["kept"]
    assert [file.path for file in found.outputs] == ["data/changed.txt", "gpt.pt"]
    assert await stored_bytes(bus, found.outputs[0]) == b"new"
    assert found.unstored == ()


async def test_the_newest_outputs_are_stored_if_not_all_can_be(tmp_path: Path) -> None:
    files = folder_of(tmp_path) / "files"
    files.mkdir()
    for number, name in enumerate(("step-10.pt", "step-9.pt", "final.pt")):
        (files / name).write_bytes(b"1234")
        os.utime(files / name, (number, number))
    found = await uploaded(tmp_path, max_bytes=8)
    assert [file.path for file in found.outputs] == ["final.pt", "step-9.pt"]
    assert list(reasons(found, tmp_path)) == ["files/step-10.pt"]


@pytest.mark.parametrize("written", ["{", "[]", '{"files": []}', '{"files": {"a": 1}}', "[" * 100_000, "\0"])
async def test_a_job_that_damages_the_list_of_its_inputs_gets_all_files(tmp_path: Path, written: str) -> None:
    folder = folder_of(tmp_path)
    (folder / "files").mkdir()
    (folder / "files" / "a").touch()
    (folder / "inputs.json").write_text(written)
    assert [file.path for file in (await uploaded(tmp_path)).outputs] == ["a"]


@pytest.mark.parametrize("digits", ["9" * 14, "\N{ARABIC-INDIC DIGIT ONE}" * 14])
async def test_a_model_file_that_no_worker_of_ours_names_is_no_model(tmp_path: Path, digits: str) -> None:
    """Its iteration would make the event unreadable."""
    (folder_of(tmp_path) / "model" / f"i{digits}.pt").write_bytes(b"x")
    assert (await uploaded(tmp_path)).model is None


async def test_of_a_folder_with_very_many_files_only_some_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_uploads, "MAX_ENTRIES", 5)
    folder = folder_of(tmp_path) / "artifacts"
    for number in range(20):
        (folder / f"{number:04d}").touch()
    found = await uploaded(tmp_path)
    assert len(found.files) == 5
    assert reasons(found, tmp_path) == {"artifacts": "it has 5 files or more"}


@pytest.mark.parametrize("place", ["artifacts", "files"])
async def test_of_very_many_folders_only_some_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """They hold no file that would count, and those of other jobs wait for the end of this walk."""
    monkeypatch.setattr(artifact_uploads, "MAX_ENTRIES", 5)
    opened: list[str] = []
    open_file = os.open

    def counted(path: Any, *arguments: Any, **more: Any) -> int:
        opened.append(str(path))
        return open_file(path, *arguments, **more)

    folder = folder_of(tmp_path) / place
    for number in range(4):
        for below in range(4):
            (folder / f"f{number}" / f"f{below}" / "f0").mkdir(parents=True)
    monkeypatch.setattr(artifact_uploads.os, "open", counted)
    found = await uploaded(tmp_path)
    assert reasons(found, tmp_path) == {place: "it has 5 folders or more"}
    assert sum(name.startswith("f") for name in opened) <= 5


async def test_a_job_without_files_stores_nothing(tmp_path: Path) -> None:
    assert await uploaded(tmp_path) == ArtifactsUploaded(job_id="a", due=5)


async def test_links_pipes_and_odd_names_are_named_and_not_followed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path) / "artifacts"
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    (folder / "file-link").symlink_to(secret / "key")
    (folder / "folder-link").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    (folder / "new\nline").touch()
    for name in (b"\xff", "\N{ROCKET}".encode() + b"\xff"):
        os.close(os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT))
    found = await uploaded(tmp_path)
    assert found.files == ()
    assert reasons(found, tmp_path) == {
        "artifacts/file-link": "it is a link, and links are not followed",
        "artifacts/folder-link": "it is a link, and links are not followed",
        "artifacts/pipe": "it is no regular file",
        "artifacts/new?line": "its name has control characters or backslashes, or more than 300 characters",
        "artifacts/?": "its name is not UTF-8",
        "artifacts/\N{ROCKET}?": "its name is not UTF-8",
    }


@pytest.mark.parametrize("place", ["artifacts", "model"])
async def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path, place: str) -> None:
    folder = folder_of(tmp_path)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "i00000000000001.pt").write_text("secret")
    (folder / place).rmdir()
    (folder / place).symlink_to(secret)
    found = await uploaded(tmp_path)
    assert (found.model, found.files) == (None, ())


def test_a_name_that_became_a_link_or_a_pipe_is_not_opened(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (tmp_path / "secret").write_text("secret")
    (folder / "artifacts" / "link").symlink_to(tmp_path / "secret")
    (folder / "artifacts" / "below").symlink_to(tmp_path)
    os.mkfifo(folder / "artifacts" / "pipe")
    for path in ("artifacts/link", "artifacts/below/secret", "artifacts/pipe", "artifacts/absent", "artifacts"):
        with pytest.raises(OSError):
            open_below(folder, path)


async def test_what_exceeds_the_bound_stays_and_is_named_in_the_log(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "model" / "i00000000000001.pt").write_bytes(b"x" * 60)
    for name, num_bytes in (("a", 30), ("b", 50), ("c", 10)):
        (folder / "artifacts" / name).write_bytes(b"x" * num_bytes)
    log_file = tmp_path / "logs" / "a" / "g2-r0.log"
    log_file.parent.mkdir(parents=True)
    log_file.write_text("last line\n")
    found = await uploaded(tmp_path, max_bytes=100)
    why = "its 50 bytes exceed what the pool stores of a job: 100 in all (max_artifact_bytes)"
    assert [file.path for file in found.files] == ["a", "c"]
    assert reasons(found, tmp_path) == {"artifacts/b": why}
    words = f"eflow: not stored, it stays on node node-0: {folder}/artifacts/b: {why}"
    assert log_file.read_text().splitlines() == ["last line", words]
    too_large = await uploaded(tmp_path, max_bytes=59)
    assert too_large.model is None
    assert "model/i00000000000001.pt" in reasons(too_large, tmp_path)


async def test_a_link_in_place_of_the_log_is_not_written(tmp_path: Path) -> None:
    (folder_of(tmp_path) / "artifacts" / "large").write_bytes(b"x")
    target = tmp_path / "target"
    target.write_text("mine")
    log_file = tmp_path / "logs" / "a" / "g2-r0.log"
    log_file.parent.mkdir(parents=True)
    log_file.symlink_to(target)
    await uploaded(tmp_path, max_bytes=0)
    assert target.read_text() == "mine"


async def test_of_many_files_the_first_are_stored_and_some_others_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path) / "artifacts"
    for number in range(MAX_FEW_ITEMS + MAX_NAMED + 5):
        (folder / f"{number:04d}").touch()
    found = await uploaded(tmp_path)
    assert (len(found.files), len(found.unstored), found.num_unstored) == (MAX_FEW_ITEMS, MAX_NAMED, MAX_NAMED + 5)


class FailingBus(MemoryBus):
    """The first attempts to put an object fail."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    async def put_object(self, bucket: str, name: str, data: bytes) -> None:
        if self.errors:
            raise self.errors.pop(0)
        await super().put_object(bucket, name, data)


async def test_an_upload_waits_for_nats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticflow.services.executor.processes.artifact_uploads._RETRY_S", 0.0)
    (folder_of(tmp_path) / "artifacts" / "f").write_bytes(b"x")
    bus = FailingBus(Unavailable("nats://n", "no leader"), Unavailable("nats://n", "no leader"))
    assert len((await uploaded(tmp_path, bus=bus)).files) == 1


async def test_a_full_or_absent_bucket_is_a_reason(tmp_path: Path) -> None:
    (folder_of(tmp_path) / "artifacts" / "f").write_bytes(b"x")
    full = await uploaded(tmp_path, bus=FailingBus(StorageFull("$O.x", "maximum bytes exceeded")))
    assert "maximum bytes exceeded" in reasons(full, tmp_path)["artifacts/f"]
    absent = await uploads(MemoryBus(), tmp_path).upload(order())
    assert reasons(absent, tmp_path) == {"artifacts/f": "the pool has no bucket for it: run `eflow configure`"}


def stored_in(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


async def test_with_a_folder_for_artifacts_files_are_there_and_not_on_the_bus(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", folder_of(tmp_path)
    (folder / "artifacts" / "plot").write_bytes(b"plot")
    (folder / "model" / f"i{12:014d}.pt").write_bytes(b"weights")
    uploads = ArtifactUploads(
        MemoryBus(), POOL, tmp_path, NODE, note=lambda _: None, log=SilentLog(), uri=store.as_uri()
    )
    found = await uploads.upload(order())
    assert found.model is not None
    assert found.uri == store.as_uri()
    assert stored_in(store) == {f"lab/{found.model.digest}": b"weights", f"lab/{found.files[0].digest}": b"plot"}
    stored = ArtifactsStored(job_id="a", due=5, node_id=NODE, model=found.model, uri=found.uri, at_s=1.0)
    fetched = io.BytesIO()
    _copy(StoredArtifacts(stored, "lab"), found.model, fetched)
    assert fetched.getvalue() == b"weights"


async def test_what_a_folder_for_artifacts_does_not_take_stays_on_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("403: no")

    monkeypatch.setattr(ArtifactFolder, "write", refuses)
    (folder_of(tmp_path) / "artifacts" / "plot").write_bytes(b"plot")
    store = (tmp_path / "store").as_uri()
    uploads = ArtifactUploads(MemoryBus(), POOL, tmp_path, NODE, note=lambda _: None, log=SilentLog(), uri=store)
    assert reasons(await uploads.upload(order()), tmp_path) == {"artifacts/plot": "RuntimeError: 403: no"}


class NoCredentialsError(Exception):
    """As botocore raises it."""


class Locked:
    """A file system of S3 that finds no credentials."""

    protocol = ("s3", "s3a")

    def open(self, path: str, mode: str) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    def rm_file(self, path: str) -> None:
        raise FileNotFoundError(path)


async def test_who_lacks_credentials_for_a_bucket_is_told_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda uri: (Locked(), uri))
    (folder_of(tmp_path) / "artifacts" / "plot").write_bytes(b"plot")
    uri = "s3://bucket/models"
    uploads = ArtifactUploads(MemoryBus(), POOL, tmp_path, NODE, note=lambda _: None, log=SilentLog(), uri=uri)
    variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    assert reasons(await uploads.upload(order()), tmp_path) == {
        "artifacts/plot": f"the executor has no credentials for {uri} (NoCredentialsError: Unable to locate "
        f"credentials): its operator sets {variables} for it"
    }
    stored = ArtifactsStored(job_id="a", due=5, node_id=NODE, uri=uri, at_s=1.0)
    with pytest.raises(ArtifactNotReadable) as raised:
        _copy(StoredArtifacts(stored, "lab"), StoredFile(path="plot", num_bytes=1, digest="a" * 64), io.BytesIO())
    assert "this machine has no credentials (NoCredentialsError: Unable to" in str(raised.value)
    assert f"{variables} is not set; set the credentials of that storage" in str(raised.value)


async def test_a_file_that_changes_while_it_is_written_to_a_folder_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_uploads, "_digest", lambda *_: "a" * 64)
    (folder_of(tmp_path) / "artifacts" / "plot").write_bytes(b"plot")
    store = tmp_path / "store"
    uploads = ArtifactUploads(
        MemoryBus(), POOL, tmp_path, NODE, note=lambda _: None, log=SilentLog(), uri=store.as_uri()
    )
    assert reasons(await uploads.upload(order()), tmp_path) == {"artifacts/plot": "it changed while it was read"}
    assert stored_in(store) == {}


async def test_old_files_of_a_folder_for_artifacts_are_deleted_as_the_pool_says(tmp_path: Path) -> None:
    store, clock = tmp_path / "store", VirtualClock(SystemClock().now_s() + 40 * DAY_S)
    ArtifactFolder(store.as_uri()).write("lab", "a" * 64, iter([b"x"]))
    uploads = ArtifactUploads(
        MemoryBus(), POOL, tmp_path, NODE, note=lambda _: None, log=SilentLog(), uri=store.as_uri()
    )
    for kept_s, left in ((None, 1), (50 * DAY_S, 1), (30 * DAY_S, 0)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await uploads.delete_old(clock, lambda kept_s=kept_s: PoolConfig(artifacts_kept_s=kept_s))
        assert len(stored_in(store)) == left


@pytest.mark.parametrize("holds", ["nothing", "other bytes", "no library"])
def test_what_a_client_says_of_a_folder_that_it_cannot_read(holds: str, tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    if holds == "other bytes":
        ArtifactFolder(store).write("lab", "a" * 64, iter([b"x"]))
    uri = "s3://bucket/store" if holds == "no library" else store
    stored = ArtifactsStored(job_id="a", due=5, node_id=NODE, uri=uri, at_s=1.0)
    file = StoredFile(path="plot", num_bytes=1, digest="a" * 64)
    said = {
        "nothing": (ArtifactGone, "is not stored any more"),
        "other bytes": (DamagedObject, "another digest"),
        "no library": (ArtifactNotReadable, "which cannot be read here: ImportError: .*s3fs"),
    }
    error, words = said[holds]
    with pytest.raises(error, match=words):
        _copy(StoredArtifacts(stored, "lab"), file, io.BytesIO())
