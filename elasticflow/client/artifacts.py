"""What a job has produced, read from the pool's object store or a bucket: no storage is shared with the nodes
(docs/adr/0065)."""

import asyncio
import contextlib
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast, get_args

from elasticflow.client.command_requests import CommandRequests
from elasticflow.client.replies import CheckpointReply
from elasticflow.errors import ArtifactGone, ArtifactNotReadable, NothingStored, NotStoredYet
from elasticflow.history.formatting import checkpoint_in_words, why_no_model
from elasticflow.shared.errors import DamagedObject, NotFound
from elasticflow.shared.messages.commands import RequestCheckpoint
from elasticflow.shared.messages.events import (
    ArtifactsStored,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointUpToDate,
    StoredFile,
)
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import with_retry
from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.runtime.remote_folder import ArtifactFolder, credential_variables, lacks_credentials
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.nodes import nodes_with_other_files
from elasticflow.shared.state.pool import PoolState
from elasticflow.times import Duration, seconds_of

STORED_TIMEOUT_S = 600.0  # a large checkpoint takes minutes, and so does its upload
_ATTEMPTS, _RETRY_S = 5, 0.5  # a replica may not have a new object so far


class StoredArtifacts(NamedTuple):
    """stored: the newest event about them. tenant: of the job, who alone may read them. left_on: nodes that may keep
    other files of the job. why_no_model: "" if one is stored."""

    stored: ArtifactsStored
    tenant: str
    left_on: tuple[str, ...] = ()
    why_no_model: str = ""


class ArtifactReader(CommandRequests):
    """Finds and downloads the artifacts of jobs."""

    async def artifacts(self, job_id: str, *, timeout: Duration = STORED_TIMEOUT_S) -> StoredArtifacts:
        """The artifacts of an ended job; or of one that trains, with its model as it is now.

        The workers of the latter write a checkpoint first. Raises UnknownJob, NothingStored, NotStoredYet, Undecided.
        """
        timeout_s = seconds_of(timeout)
        job = await self.job(job_id)
        stored_before = job.artifacts.sequence
        if job.live and not await self._request(job, timeout_s):
            stored_before = -1
        state, job = await self._once_stored(job_id, stored_before, timeout_s)
        if not job.artifacts.sequence:
            kept = (
                f"; {checkpoint_in_words(job, job.trained_on)}" if job.checkpoint_iteration and job.trained_on else ""
            )
            raise NothingStored(job_id, f"it is {job.phase.value}, and nothing of it was ever stored{kept}")
        if (stored := await self._stored_files(job)) is None:
            raise NothingStored(job_id, f"message {job.artifacts.sequence} of the ledger does not say what is stored")
        left_on = nodes_with_other_files(state, job, stored.node_id)
        return StoredArtifacts(stored, job.tenant, left_on, why_no_model(stored, job, left_on))

    async def _request(self, job: Job, timeout_s: float) -> bool:
        """Request that its present model is stored. False if it does not train: what was stored before counts."""
        if job.spec is not None and job.spec.entry == TORCHRUN:
            raise NothingStored(
                job.job_id, "a torchrun script keeps its own checkpoints: fetch its files after its end"
            )
        command = RequestCheckpoint(job_id=job.job_id, tenant=self.tenant, store=True)
        replied = asyncio.create_task(self._reply_to(command, get_args(CheckpointReply), timeout_s))
        ended = asyncio.create_task(self.wait(job.job_id))  # then its workers write no other checkpoint
        try:
            await asyncio.wait((replied, ended), return_when=asyncio.FIRST_COMPLETED)
            reply = replied.result() if replied.done() else None
        finally:
            for task in (replied, ended):
                task.cancel()
            await asyncio.gather(replied, ended, return_exceptions=True)
        match reply:
            case CheckpointFailed() | CheckpointRejected():
                raise NothingStored(job.job_id, reply.explanation)
            case CheckpointUpToDate():
                return False
            case _:
                return True

    async def _once_stored(self, job_id: str, stored_before: int, timeout_s: float) -> tuple[PoolState, Job]:
        """The pool and the job, once nothing of it is due; while it is live, also once something newer is stored."""
        job: Job | None = None
        try:
            async with asyncio.timeout(timeout_s), contextlib.aclosing(self.states()) as states:
                async for state in states:
                    job = self._known(state, job_id)
                    is_newer = job.artifacts.sequence > stored_before
                    if not job.artifacts.due and (is_newer or not job.live):
                        return state, job
        except TimeoutError:
            node_id = job.artifacts.node_id if job is not None else ""
            raise NotStoredYet(job_id, node_id or "?", timeout_s) from None
        raise AssertionError("states() never ends")

    async def download(self, artifacts: StoredArtifacts, file: StoredFile, out: BinaryIO) -> None:
        """Raises ArtifactGone, ArtifactNotReadable, DamagedObject, NotPermitted, OSError."""
        if artifacts.stored.uri:
            await asyncio.to_thread(_copy, artifacts, file, out)
            return
        digest = hashlib.sha256()
        bucket, node_id = streams.artifact_bucket(self._pool), artifacts.stored.node_id
        for index in range(streams.num_pieces(file.num_bytes)):
            name = streams.artifact_name(artifacts.tenant, node_id, file.digest, index)
            piece = await self._piece(bucket, name, ArtifactGone(artifacts.stored.job_id, file.path, node_id))
            digest.update(piece)
            await asyncio.to_thread(out.write, piece)
        if digest.hexdigest() != file.digest:
            raise DamagedObject(bucket, file.path, "its bytes have another digest than the ledger says")

    async def _piece(self, bucket: str, name: str, gone: ArtifactGone) -> bytes:
        for attempt in range(_ATTEMPTS):
            with contextlib.suppress(NotFound):
                max_bytes = streams.ARTIFACT_PIECE_BYTES
                return await with_retry(self._bus.get_object, bucket, name, max_bytes=max_bytes)
            if attempt < _ATTEMPTS - 1:
                await asyncio.sleep(_RETRY_S)
        raise gone

    async def save(
        self,
        artifacts: StoredArtifacts,
        file: StoredFile,
        target: Path,
        on_written: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        """Download into this file, which appears whole or not at all. Raises as `download`.

        on_written: gets the bytes of each piece, also in another thread.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{fresh_id()}.part")  # another process may fetch the same file
        try:
            with unfinished.open("xb") as out:
                shown = _Shown(out, lambda piece: on_written(len(piece)))
                await self.download(artifacts, file, cast(BinaryIO, shown))
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)


class _Shown(io.RawIOBase):
    """Writes on, and shows each piece to a function."""

    def __init__(self, out: BinaryIO, show: Callable[[bytes], object]) -> None:
        self._out, self._show = out, show

    def write(self, data: Any) -> int:
        written = self._out.write(data)
        self._show(data)
        return written


def _copy(artifacts: StoredArtifacts, file: StoredFile, out: BinaryIO) -> None:
    stored, digest = artifacts.stored, hashlib.sha256()
    try:
        ArtifactFolder(stored.uri).read(artifacts.tenant, file.digest, cast(BinaryIO, _Shown(out, digest.update)))
    except FileNotFoundError:
        raise ArtifactGone(stored.job_id, file.path, stored.node_id) from None
    except Exception as error:  # of a library, or that there is none
        reason = f"{type(error).__name__}: {error}"
        if lacks_credentials(error):
            reason = f"this machine has no credentials ({reason}): {credential_variables(stored.uri)} is not set"
        raise ArtifactNotReadable(stored.job_id, file.path, stored.uri, reason) from error
    if digest.hexdigest() != file.digest:
        raise DamagedObject(stored.uri, file.path, "its bytes have another digest than the ledger says")
