"""Uploads what jobs have produced to the pool's object store, or to a folder by fsspec, one job after another
(docs/adr/0065).

In the object store, a file is in pieces, by the SHA-256 of all of it. An upload that was interrupted is repeated:
pieces that are there already are found by their names.
"""

import asyncio
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from elasticflow.services.executor.decisions.local_events_and_actions import ArtifactsUploaded, StoreArtifacts
from elasticflow.shared.errors import ElasticFlowError, NotFound, Retry, StorageFull
from elasticflow.shared.messages.events import StoredFile, UnstoredFile
from elasticflow.shared.messages.limits import FILE_PATH_PATTERN, MAX_FEW_ITEMS, MAX_PATH_LENGTH
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.worker_protocol.from_worker import (
    ARTIFACT_FOLDER,
    INPUTS_FILE,
    MODEL_FOLDER,
    WORKING_FOLDER,
    digest_of_model,
    iteration_of_model,
)
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.files import open_regular_file
from elasticflow.shared.runtime.process.folder_tree import are_folders_of
from elasticflow.shared.runtime.remote_folder import ArtifactFolder, credential_variables, lacks_credentials

# --- job files -----------------------------------------------------------------------------------------
# The files of a job that are stored for its user: found and opened without following links out of its folder.
#
# A worker may replace each folder and file below its own by a link, at any time. So each name is opened relative to
# the open folder above it, and only regular files count (docs/adr/0058).

MAX_DEPTH = 32  # of folders
MAX_ENTRIES = 10_000  # that are looked at
_MAX_INPUTS_BYTES = 8 << 20  # a decoded one may take 30 times as much memory
_COMPILED = "__pycache__"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would block


class Unsuitable(OSError):
    """A name of the job's folder that is not what it must be, with the reason."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """path: below the job's folder."""

    path: str
    iteration: int


def newest_model(job_folder: Path) -> FoundModel | None:
    """The newest model in the job's folder; None if no worker has written one."""
    try:
        folder = _open_folder(job_folder, MODEL_FOLDER)
    except OSError:
        return None
    with _closing(folder) as fd, os.scandir(fd) as entries:
        known = ((iteration, entry.name) for entry in entries if (iteration := iteration_of_model(entry.name)))
        newest = max(known, default=None)
    if newest is None:
        return None
    iteration, name = newest
    return FoundModel(f"{MODEL_FOLDER}/{name}", iteration)


def artifact_paths(job_folder: Path) -> tuple[list[str], list[UnstoredFile]]:
    """The files of the job's artifact folder, sorted, below it; and what is there but cannot be stored."""
    found, unsuitable = _files_below(job_folder, ARTIFACT_FOLDER, {})
    return sorted(file.path for file in found), unsuitable


def output_paths(job_folder: Path) -> tuple[list[str], list[UnstoredFile]]:
    """What the job has written or changed in its working folder, the newest first, as `artifact_paths`."""
    found, unsuitable = _files_below(job_folder, WORKING_FOLDER, _inputs(job_folder))
    return [file.path for file in sorted(found, key=lambda file: (-file.changed_at_ns, file.path))], unsuitable


class _File(NamedTuple):
    """problem: why it cannot be stored; "" if it can."""

    path: str
    problem: str
    num_bytes: int
    changed_at_ns: int


def _files_below(job_folder: Path, name: str, inputs: Mapping[str, Any]) -> tuple[list[_File], list[UnstoredFile]]:
    """The files below a folder of the job, and those that cannot be stored; without inputs that are unchanged."""
    files: list[_File] = []
    unsuitable: list[UnstoredFile] = []
    try:
        folder = _open_folder(job_folder, name)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [UnstoredFile(path=printable(job_folder / name), reason=_reason(error))]
    num_folders, too_many = 0, ""
    with _closing(folder) as fd:
        for file in _walk(fd, "", MAX_DEPTH, MAX_ENTRIES + len(inputs)):
            if file is None:
                num_folders += 1
                if num_folders >= MAX_ENTRIES + len(inputs):
                    too_many = f"it has {num_folders:,} folders or more"
            elif inputs.get(file.path) == [file.num_bytes, file.changed_at_ns]:
                continue
            elif file.problem:
                unsuitable.append(UnstoredFile(path=printable(job_folder / name / file.path), reason=file.problem))
            else:
                files.append(file)
            if len(files) + len(unsuitable) >= MAX_ENTRIES:
                too_many = f"it has {MAX_ENTRIES:,} files or more"
            if too_many:
                unsuitable.append(UnstoredFile(path=printable(job_folder / name), reason=too_many))
                break
    return files, unsuitable


def _inputs(job_folder: Path) -> Mapping[str, Any]:
    """Size and time of change of each file that was copied into the working folder. The job may write anything here."""
    try:
        with open(open_below(job_folder, INPUTS_FILE), "rb") as file:
            known: Any = json.loads(file.read(_MAX_INPUTS_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    inputs: Any = known.get("files") if isinstance(known, dict) else None
    return inputs if isinstance(inputs, dict) else {}


def open_below(folder: Path, path: str) -> int:
    """A descriptor of the regular file. Raises OSError."""
    *parents, name = path.split("/")
    with _closing(_open_folder(folder, *parents)) as fd:
        try:
            file = os.open(name, _FILE, dir_fd=fd)
        except OSError as error:
            raise Unsuitable(_reason(error)) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Unsuitable("it is no regular file")
    return file


def printable(path: object) -> str:
    """The path as one line of text, whatever its name has."""
    return "".join(char if char.isprintable() else "?" for char in str(path))[:1_000]


def _walk(folder: int, prefix: str, depth: int, max_entries: int) -> Iterator[_File | None]:
    """Each file below the open folder, except compiled Python; None for each folder, before it is opened."""
    with os.scandir(folder) as entries:
        found = sorted(islice(entries, max_entries), key=lambda entry: entry.name)
    for entry in found:
        path = f"{prefix}{entry.name}"
        if entry.is_symlink() or not entry.is_dir(follow_symlinks=False):
            yield _file(path, entry)
        elif entry.name == _COMPILED:
            continue
        elif depth == 0:
            yield _File(path, f"it is deeper than {MAX_DEPTH} folders", 0, 0)
        else:
            yield None
            try:
                below = os.open(entry.name, _FOLDER, dir_fd=folder)
            except OSError as error:
                yield _File(path, _reason(error), 0, 0)
                continue
            with _closing(below) as fd:
                yield from _walk(fd, f"{path}/", depth - 1, max_entries)


def _file(path: str, entry: "os.DirEntry[str]") -> _File:
    problem = _problem(path, entry)
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:  # it is gone
        return _File(path, problem or _reason(error), 0, 0)
    return _File(path, problem, status.st_size, status.st_mtime_ns)


def _problem(path: str, entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink():
        return "it is a link, and links are not followed"
    if not entry.is_file(follow_symlinks=False):
        return "it is no regular file"
    if len(path) > MAX_PATH_LENGTH or not re.fullmatch(FILE_PATH_PATTERN, path):
        return f"its name has control characters or backslashes, or more than {MAX_PATH_LENGTH} characters"
    if any("\ud800" <= char <= "\udfff" for char in path):
        return "its name is not UTF-8"
    return ""


def _open_folder(folder: Path, *below: str) -> int:
    """Raises OSError, also for a link."""
    fd = os.open(folder, _FOLDER)
    for name in below:
        with _closing(fd) as above:
            fd = os.open(name, _FOLDER, dir_fd=above)
    return fd


class _closing:
    """Closes a descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


# --- artifact uploads ----------------------------------------------------------------------------------

SWEEP_EVERY_S = 3_600.0
MAX_NAMED = 20  # of the files that are not stored
_RETRY_S = 1.0


class NotStored(Exception):
    """This file stays on its node, for this reason."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Deletes old files of a folder by its URI. what: their name in the log. kept_s: as configured; None: forever."""

    what: str
    kept_s: Callable[[], float | None]
    log: Any

    async def run(self, clock: Clock, delete_older: Callable[[float], int]) -> None:
        """Until cancelled. delete_older: blocking; deletes what is older than a time, and returns how many files."""
        while True:
            if (kept_s := self.kept_s()) is not None:
                try:
                    num_deleted = await asyncio.to_thread(delete_older, clock.now_s() - kept_s)
                    self.log.info(f"Old{self.what}Deleted", num_files=num_deleted)
                except Exception as error:  # of a library; the next sweep tries again
                    self.log.warning(f"Old{self.what}NotDeleted", error=str(error))
            await asyncio.sleep(SWEEP_EVERY_S)


class ArtifactUploads:
    """The uploads of one node. uri: of a folder, instead of the object store. note: receives `ArtifactsUploaded`."""

    def __init__(
        self,
        bus: Bus,
        pool: str,
        data_dir: Path,
        node_id: str,
        *,
        note: Callable[[ArtifactsUploaded], None],
        log: Any,
        uri: str = "",
    ) -> None:
        self._uri, self._folder = uri, ArtifactFolder(uri) if uri else None
        self._bus, self._bucket = bus, streams.artifact_bucket(pool)
        self._checkpoints, self._logs = data_dir / "checkpoints", data_dir / "logs"
        self._node_id, self._note, self._log = node_id, note, log
        self._orders: asyncio.Queue[StoreArtifacts] = asyncio.Queue()

    def act(self, order: StoreArtifacts) -> None:
        """Upload it soon; does not block."""
        self._orders.put_nowait(order)

    async def run(self) -> None:
        """Execute each ordered upload, until cancelled."""
        while True:
            order = await self._orders.get()
            try:
                uploaded = await self.upload(order)
            except Exception as error:  # the executor trains on; the ledger says why the job's files are not stored
                self._log.exception("ArtifactsNotStored", job_id=order.job_id)
                folder = printable(self._checkpoints / order.job_id)
                why = UnstoredFile(path=folder, reason=f"{type(error).__name__}: {error}"[:1_000])
                uploaded = ArtifactsUploaded(job_id=order.job_id, due=order.due, unstored=(why,), num_unstored=1)
            self._note(uploaded)

    async def delete_old(self, clock: Clock, config: Callable[[], PoolConfig]) -> None:
        """Keep the folder free of what is older than `artifacts_kept_s`, until cancelled. All nodes do, at any time."""
        if self._folder is not None:
            await Sweep("Artifacts", lambda: config().artifacts_kept_s, self._log).run(clock, self._folder.delete_older)

    async def upload(self, order: StoreArtifacts) -> ArtifactsUploaded:
        """The model first, then artifacts by name, then the newest outputs, as far as the bound permits."""
        folder = self._checkpoints / order.job_id
        if not await asyncio.to_thread(are_folders_of, self._checkpoints.parent, order.job_id, order.identity):
            return ArtifactsUploaded(job_id=order.job_id, due=order.due)  # this job has never worked here
        found = await asyncio.to_thread(newest_model, folder)
        artifacts, unstored = await asyncio.to_thread(artifact_paths, folder)
        outputs, unsuitable = await asyncio.to_thread(output_paths, folder)
        unstored += unsuitable
        stored: dict[str, list[StoredFile]] = {MODEL_FOLDER: [], ARTIFACT_FOLDER: [], WORKING_FOLDER: []}
        wanted = [] if found is None else [found.path]
        wanted += [f"{ARTIFACT_FOLDER}/{path}" for path in artifacts]
        wanted += [f"{WORKING_FOLDER}/{path}" for path in outputs]
        left_bytes = order.max_bytes
        for path in wanted:
            try:
                if len(stored[ARTIFACT_FOLDER]) + len(stored[WORKING_FOLDER]) == MAX_FEW_ITEMS:
                    raise NotStored(f"a job may store {MAX_FEW_ITEMS} files")
                file = await self._store(order, folder, path, left_bytes)
            except NotStored as error:
                unstored.append(UnstoredFile(path=printable(folder / path), reason=str(error)))
                continue
            left_bytes -= file.num_bytes
            stored[path.partition("/")[0]].append(file)
        files = stored[ARTIFACT_FOLDER]
        newest = sorted(stored[WORKING_FOLDER], key=lambda file: file.path)
        named = tuple(unstored[:MAX_NAMED])
        if named:
            await asyncio.to_thread(self._write_to_log, order, named, len(unstored))
        self._log.info(
            "ArtifactsUploaded", job_id=order.job_id, num_files=len(files) + len(newest), num_unstored=len(unstored)
        )
        return ArtifactsUploaded(
            job_id=order.job_id,
            due=order.due,
            iteration=found.iteration if found is not None else 0,
            model=next(iter(stored[MODEL_FOLDER]), None),
            files=tuple(files),
            outputs=tuple(newest),
            unstored=named,
            num_unstored=len(unstored),
            uri=self._uri,
        )

    async def _store(self, order: StoreArtifacts, folder: Path, path: str, left_bytes: int) -> StoredFile:
        """Raises NotStored. Waits while NATS is out of reach."""
        try:
            file = await asyncio.to_thread(open_below, folder, path)
        except OSError as error:
            raise NotStored(error.strerror or str(error)) from error
        try:
            num_bytes = os.fstat(file).st_size
            if num_bytes > left_bytes:
                raise NotStored(
                    f"its {num_bytes:,} bytes exceed what the pool stores of a job: {order.max_bytes:,} in all "
                    "(max_artifact_bytes)"
                )
            digest = await asyncio.to_thread(_digest, file, num_bytes)
            name = path.rpartition("/")[2]
            if path.startswith(f"{MODEL_FOLDER}/") and digest_of_model(name) not in ("", digest):
                raise NotStored("it was damaged after it was written: fetch the model of another iteration")
            if self._folder is not None:
                pieces = _unchanged_pieces(file, num_bytes, digest)
                await asyncio.to_thread(self._folder.write, order.tenant, digest, pieces)
                return StoredFile(path=path.partition("/")[2], num_bytes=num_bytes, digest=digest)
            again = hashlib.sha256()
            for index in range(streams.num_pieces(num_bytes)):
                piece = await asyncio.to_thread(_piece, file, num_bytes, index)
                again.update(piece)
                await self._put(streams.artifact_name(order.tenant, self._node_id, digest, index), piece)
        except OSError as error:
            raise NotStored(error.strerror or str(error)) from error
        except Exception as error:
            if self._folder is None or isinstance(error, NotStored):
                raise
            raise NotStored(self._in_words(error)) from error  # of a library
        finally:
            os.close(file)
        if num_bytes and again.hexdigest() != digest:
            raise NotStored("it changed while it was read")
        return StoredFile(path=path.partition("/")[2], num_bytes=num_bytes, digest=digest)

    def _in_words(self, error: Exception) -> str:
        words = f"{type(error).__name__}: {error}"[:1_000]
        if not lacks_credentials(error):
            return words
        variables = credential_variables(self._uri)
        return f"the executor has no credentials for {self._uri} ({words}): its operator sets {variables} for it"

    async def _put(self, name: str, piece: bytes) -> None:
        while True:
            try:
                return await self._bus.put_object(self._bucket, name, piece)
            except NotFound:
                raise NotStored("the pool has no bucket for it: run `eflow configure`") from None
            except StorageFull as error:
                raise NotStored(str(error)) from error
            except Retry as error:
                self._log.warning("ArtifactUploadPostponed", error=str(error))
                await asyncio.sleep(_RETRY_S)
            except ElasticFlowError as error:
                raise NotStored(str(error)) from error

    def _write_to_log(self, order: StoreArtifacts, named: tuple[UnstoredFile, ...], num_unstored: int) -> None:
        """Write what is not stored to the log of rank 0. A worker could have put a link in its place."""
        lines = [f"eflow: not stored, it stays on node {self._node_id}: {file.path}: {file.reason}" for file in named]
        if num_unstored > len(named):
            lines.append(f"eflow: and {num_unstored - len(named)} more files are not stored")
        log_file = self._logs / order.job_id / f"g{order.generation}-r0.log"
        with suppress(OSError), open_regular_file(log_file, os.O_WRONLY | os.O_APPEND) as log:
            os.write(log, "".join(f"{line}\n" for line in lines).encode(errors="replace"))


def _digest(file: int, num_bytes: int) -> str:
    """Raises OSError if the file is shorter."""
    digest = hashlib.sha256()
    for piece in (_piece(file, num_bytes, index) for index in range(streams.num_pieces(num_bytes))):
        digest.update(piece)
    return digest.hexdigest()


def _unchanged_pieces(file: int, num_bytes: int, digest: str) -> Iterator[bytes]:
    """Raises NotStored after the last one if they are others than before."""
    again = hashlib.sha256()
    for index in range(streams.num_pieces(num_bytes)):
        piece = _piece(file, num_bytes, index)
        again.update(piece)
        yield piece
    if num_bytes and again.hexdigest() != digest:
        raise NotStored("it changed while it was read")


def _piece(file: int, num_bytes: int, index: int) -> bytes:
    """Raises OSError if the file is shorter."""
    start = index * streams.ARTIFACT_PIECE_BYTES
    end = min(start + streams.ARTIFACT_PIECE_BYTES, num_bytes)
    data = b"".join(_parts(file, start, end))
    if len(data) != end - start:
        raise OSError("it changed while it was read")
    return data


def _parts(file: int, start: int, end: int) -> Iterator[bytes]:
    """A file system may return fewer bytes than were asked for."""
    while start < end and (part := os.pread(file, end - start, start)):
        start += len(part)
        yield part
