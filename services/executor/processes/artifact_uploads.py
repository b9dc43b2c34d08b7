"""Uploads what jobs have produced to the pool's object store, or to a folder by fsspec, one job after another
(docs/adr/0065).

In the object store, a file is in pieces, by the SHA-256 of all of it. An upload that was interrupted is repeated:
pieces that are there already are found by their names.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import ArtifactsUploaded, StoreArtifacts
from elasticflow.services.executor.processes.job_files import (
    artifact_paths,
    newest_model,
    open_below,
    output_paths,
    printable,
)
from elasticflow.shared.errors import ElasticFlowError, NotFound, Retry, StorageFull
from elasticflow.shared.messages.events import StoredFile, UnstoredFile
from elasticflow.shared.messages.limits import MAX_FEW_ITEMS
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.worker_protocol.job_files import (
    ARTIFACT_FOLDER,
    MODEL_FOLDER,
    WORKING_FOLDER,
    digest_of_model,
)
from elasticflow.shared.runtime.artifact_folder import ArtifactFolder
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.missing_credentials import credential_variables, lacks_credentials
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.job_folders import are_folders_of
from elasticflow.shared.runtime.process.regular_file import open_regular_file

SWEEP_EVERY_S = 3_600.0
MAX_NAMED = 20  # of the files that are not stored
_RETRY_S = 1.0


class NotStored(Exception):
    """This file stays on its node, for this reason."""


class ArtifactUploads:
    """Of one node. uri: of a folder, instead of the object store. note: receives `ArtifactsUploaded`."""

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
        """Until cancelled."""
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
        """Until cancelled: keep the folder free of what is older than `artifacts_kept_s`. All nodes do, at any time."""
        while self._folder is not None:
            if (kept_s := config().artifacts_kept_s) is not None:
                try:
                    num_deleted = await asyncio.to_thread(self._folder.delete_older, clock.now_s() - kept_s)
                    self._log.info("OldArtifactsDeleted", num_files=num_deleted)
                except Exception as error:  # of a library; the next sweep tries again
                    self._log.warning("OldArtifactsNotDeleted", error=str(error))
            await asyncio.sleep(SWEEP_EVERY_S)

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
        """To the log of rank 0. A worker could have put a link in its place."""
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
