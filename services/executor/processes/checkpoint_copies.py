"""Copies of checkpoints in a folder that all nodes reach, such as a bucket: these nodes need no common file system.

A checkpoint counts for the pool once its copy is whole. Copies lie at <pool>/<tenant>/<identity of the job>/<name>; a
name has generation, iteration and SHA-256. The nodes' own files are copies of these, and workers know no others
(docs/adr/0120).
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

from elasticflow.services.executor.processes.artifact_uploads import Sweep, open_below
from elasticflow.services.executor.processes.prepared_folders import CHECKPOINT_NAME, checkpoints_in, is_whole
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.job_spec import TORCHRUN, ContinuedJob
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.runtime.process.clock import Clock, fresh_id
from elasticflow.shared.runtime.process.files import rename_durably
from elasticflow.shared.runtime.remote_folder import RemoteFolder
from elasticflow.shared.state.pool import PoolState

_KEPT = 2  # of a job, as on the disk: an older one remains if the newest is damaged
_PIECE_BYTES = 8 << 20
_GIVE_UP_S = 120.0  # of one checkpoint: a newer one follows
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 15.0
_ITERATION = slice(len("g0000000000-i"), len("g0000000000-i00000000000000"))


@dataclass(eq=False)
class CopiesUnreachable(Retry):
    """Another attempt may succeed."""

    uri: str
    why: str

    MESSAGE: ClassVar[str] = "the checkpoints of the job cannot be read from {uri}: {why}"


class _Damaged(Exception):
    """A file does not have the content that its name has the SHA-256 of."""


class Wanted(NamedTuple):
    """Checkpoints of one job that a worker may begin from: of at least this iteration, or of exactly this one.

    or_older: an older one is better than none, if this one is damaged or lost (docs/adr/0098).
    """

    identity: str
    iteration: int
    is_exact: bool = False
    or_older: bool = False


def has_copies(assignment: Assignment) -> bool:
    """Whether checkpoints of this worker's job are copied. A profiling run keeps none, and those of a torchrun script
    only say what is in its own files."""
    return assignment.purpose == "train" and assignment.spec.entry != TORCHRUN


def reads_first(assignment: Assignment) -> bool:
    """Whether its generation begins from the checkpoint that this worker reads."""
    return has_copies(assignment) and assignment.rank == 0 and not assignment.plan.transfers_state


def wanted_copies(assignment: Assignment, continued: ContinuedJob | None) -> list[Wanted]:
    """Of whom a worker may need a copy before it starts. continued: the job that this one still begins from."""
    if not has_copies(assignment):
        return []
    known = assignment.checkpoint_iteration
    if continued is None:
        reads_part = assignment.spec.shard_optimizer and not assignment.plan.transfers_state
        is_read = known > 0 and (reads_first(assignment) or reads_part)
        return [Wanted(assignment.job_identity, known, or_older=True)] if is_read else []
    # later ones of the earlier jobs are of other work than that which the job continued
    return [
        Wanted(each, continued.iteration, continued.is_exact or each != continued.identity)
        for each in continued.writers
    ]


class CheckpointCopies:
    """The copies of one node's jobs. data_dir: of the executor. Raises what the library for the protocol raises."""

    def __init__(self, uri: str, data_dir: Path, log: Any) -> None:
        self._folder = RemoteFolder(uri)
        self._checkpoints, self._log = data_dir / "checkpoints", log
        self._turns = WeakValueDictionary[str, asyncio.Lock]()  # of the workers of a job that want a copy

    async def store(self, tenant: str, assignment: Assignment, iteration: int) -> str:
        """Return "" once the checkpoint of this iteration has a copy, or a later one that has replaced it; else the
        reason why there is none after some time."""
        copy = partial(self._store, tenant, assignment, iteration)
        try:
            has_copy = await self._tried(copy, f"checkpoint {iteration} of {assignment.job_id}", _GIVE_UP_S)
        except CopiesUnreachable as error:
            return error.why
        return "" if has_copy else "it is not on the disk"

    async def bring(self, tenant: str, assignment: Assignment, wanted: Iterable[Wanted], *, within_s: float) -> None:
        """Return once the folder of the job on this node has a checkpoint as wanted, if there is one. Raises
        CopiesUnreachable."""
        job_id = assignment.job_id
        turn = self._turns.setdefault(job_id, asyncio.Lock())  # who comes next finds what the one before has brought
        for each in wanted:
            bring = partial(self._bring, tenant, job_id, each)
            if await self._tried(bring, f"the checkpoint of {job_id}", within_s, turn):
                return

    async def store_newer(self, tenant: str, assignment: Assignment, known: int, *, within_s: float) -> None:
        """Return once the newest checkpoint on this node has a copy, if it is of a later iteration than the pool knows:
        it counts once a worker begins from it. Raises CopiesUnreachable."""
        store = partial(self._store_newer, tenant, assignment, known)
        await self._tried(store, f"the newest checkpoint of {assignment.job_id}", within_s)

    async def delete_old(self, clock: Clock, folded: Callable[[], PoolState]) -> None:
        """Delete what ended jobs have left for longer than `checkpoints_kept_s`, until cancelled, as all nodes do."""
        sweep = Sweep("CheckpointCopies", lambda: folded().config.checkpoints_kept_s, self._log)
        await sweep.run(clock, lambda than_s: self._delete_older(than_s, folded()))

    async def _tried(
        self, work: Callable[[], bool], what: str, within_s: float, turn: asyncio.Lock | None = None
    ) -> bool:
        """turn: held during each attempt. Raises CopiesUnreachable if it has failed for so long."""
        begun_s, wait_s = time.monotonic(), _FIRST_RETRY_S
        while True:
            try:
                async with turn or nullcontext():
                    return await asyncio.to_thread(work)
            except Exception as error:  # of a library: it may be another one each time
                why = f"{type(error).__name__}: {error}"[:1_000]
            if time.monotonic() - begun_s + wait_s > within_s:
                raise CopiesUnreachable(self._folder.uri, why)
            self._log.warning("CheckpointCopyPostponed", what=what, error=why)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)

    # --- blocking ---

    def _store(self, tenant: str, assignment: Assignment, iteration: int) -> bool:
        """False if neither this one nor a later one is on the disk."""
        here = self._here(assignment.job_id)
        later = sorted(name for name, at in here.items() if is_whole(name) and at >= iteration)
        if not later:
            return False
        self._copy(tenant, assignment, ([name for name in later if here[name] == iteration] or later)[-1])
        return True

    def _store_newer(self, tenant: str, assignment: Assignment, known: int) -> bool:
        """Whether there is one. As a worker, pass over one that is damaged."""
        here = self._here(assignment.job_id)
        for whole in sorted((name for name, at in here.items() if is_whole(name) and at > known), reverse=True):
            try:
                self._copy(tenant, assignment, whole)
            except _Damaged as error:
                self._log.warning("CheckpointNotCopied", job_id=assignment.job_id, reason=str(error))
                continue
            return True
        return False

    def _here(self, job_id: str) -> dict[str, int]:
        """The names of the files on this node, and their iterations."""
        return {file.name: iteration for file, iteration in checkpoints_in(self._checkpoints / job_id)}

    def _copy(self, tenant: str, assignment: Assignment, whole: str) -> None:
        """Copy this checkpoint with its parts, and delete the copies of older ones."""
        place, newest = f"{tenant}/{assignment.job_identity}", _key(whole)
        there = self._names(place)
        # the whole one last: a copy without its parts is none
        for name in sorted((name for name in self._here(assignment.job_id) if _key(name) == newest), key=is_whole):
            if name not in there:
                self._folder.write(f"{place}/{name}", _pieces(self._checkpoints / assignment.job_id, name))
        there = self._names(place)
        # as on the disk: a name proves nothing, so one that seems to be newer takes the place of none
        kept = sorted({_key(name) for name in there if is_whole(name) and _key(name) <= newest})[-_KEPT:]
        for name in there:
            if _key(name) < newest and _key(name) not in kept:
                self._folder.delete(f"{place}/{name}")

    def _bring(self, tenant: str, job_id: str, wanted: Wanted) -> bool:
        """Whether the folder of the job has one."""
        here = [iteration for name, iteration in self._here(job_id).items() if is_whole(name)]
        if any(_fits(iteration, wanted) for iteration in here):
            return True
        place = f"{tenant}/{wanted.identity}"
        there = self._names(place)
        found = [(name, int(name[_ITERATION])) for name in sorted(there, reverse=True) if is_whole(name)]
        fitting = [name for name, iteration in found if _fits(iteration, wanted)]
        newest_here = max(here, default=-1)
        older = [name for name, at in found if wanted.or_older and newest_here < at < wanted.iteration]
        return any(self._fetch_with_parts(place, job_id, there, whole) for whole in (*fitting, *older))

    def _fetch_with_parts(self, place: str, job_id: str, there: list[str], whole: str) -> bool:
        """there: what the store has of the job. False if it is damaged, or replaced by now."""
        try:
            for name in sorted((name for name in there if _key(name) == _key(whole)), key=is_whole):
                self._fetch(f"{place}/{name}", self._checkpoints / job_id / name)
        except (_Damaged, FileNotFoundError) as error:
            self._log.warning("CheckpointCopyPassedOver", file=f"{place}/{whole}", reason=str(error))
            return False
        self._log.info("CheckpointBrought", job_id=job_id, file=whole)
        return True

    def _fetch(self, path: str, file: Path) -> None:
        """Raises _Damaged."""
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.{fresh_id()}")  # the thread of a worker that was killed may still read
        try:
            with part.open("wb") as out:
                self._folder.read(path, out)
                out.flush()
                os.fsync(out.fileno())
                with suppress(OSError):  # an executor without rights over it has workers of its own user
                    status = file.parent.stat()
                    os.fchown(out.fileno(), status.st_uid, status.st_gid)
            with part.open("rb") as written:
                if hashlib.file_digest(written, "sha256").hexdigest() != _digest(file.name):
                    raise _Damaged("its content does not match its name")
            rename_durably(part, file)
        finally:
            part.unlink(missing_ok=True)

    def _names(self, place: str) -> list[str]:
        names = (path.rpartition("/")[2] for path in self._folder.files(place))
        return [name for name in names if CHECKPOINT_NAME.fullmatch(name)]

    def _delete_older(self, than_s: float, state: PoolState) -> int:
        specs = [job.spec for job in state.live_jobs.values() if job.spec is not None]
        needed = {job.identity for job in state.live_jobs.values()}
        needed.update(each for spec in specs if spec.continues is not None for each in spec.continues.writers)
        num_deleted = 0
        for path in self._folder.files():
            _, identity, name = ("//" + path).rsplit("/", 2)
            if CHECKPOINT_NAME.fullmatch(name) and identity not in needed and self._folder.modified_s(path) < than_s:
                self._folder.delete(path)
                num_deleted += 1
        return num_deleted


def _fits(iteration: int, wanted: Wanted) -> bool:
    return iteration == wanted.iteration if wanted.is_exact else iteration >= wanted.iteration


def _key(name: str) -> str:
    """Generation and iteration, in their order."""
    return name[: _ITERATION.stop]


def _digest(name: str) -> str:
    return name.rpartition("-")[2].partition(".")[0]


def _pieces(folder: Path, name: str) -> Iterator[bytes]:
    """Raises _Damaged behind the last one, so that nothing is stored. A job could have put a link in its place."""
    digest = hashlib.sha256()
    with open(open_below(folder, name), "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != _digest(name):
        raise _Damaged(f"{name}: its content does not match its name")
