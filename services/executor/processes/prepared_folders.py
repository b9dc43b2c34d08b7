"""Folders that a child process fills, once per node: packages and data of jobs."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

from elasticflow.services.executor.processes.forked_process import ForkedProcess
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.worker_protocol.frames import FrameReader
from elasticflow.shared.messages.worker_protocol.preparing import (
    RESULT,
    FromPreparer,
    NotPrepared,
    Prepared,
    ToPreparer,
)
from elasticflow.shared.runtime.process.folder_tree import bytes_and_entries_in, delete_folder

_CHECK_EVERY_S = 1.0
_BYTES_FOR_A_FILE = 16 << 10  # of the bound: file systems have an inode for so many bytes

Fork = Callable[[], Awaitable[ForkedProcess]]


class CannotPrepare(Exception):
    """A job cannot have this here: it fails with this message."""


@dataclass(eq=False)
class PreparerEnded(Retry):
    """A fault of the node: another attempt may succeed."""

    what: str
    how: str

    MESSAGE: ClassVar[str] = "the process that gets {what} has ended: {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How a folder is filled. what: it holds, in words of its job. order: for the process, by its unfinished folder.

    max_bytes: also of what is needed meanwhile. advice: if it is too large or takes too long. key: callers with the
    same one wait for one process.
    """

    folder: Path
    what: str
    order: Callable[[str], ToPreparer]
    max_bytes: int
    advice: str
    key: Hashable


class PreparedFolders:
    """fork: a process of the fork server, `Launcher.fork`, with the rights of a worker."""

    def __init__(self, fork: Fork, log: Any) -> None:
        self._fork, self._log = fork, log
        self._running: dict[Hashable, asyncio.Task[None]] = {}

    async def prepare(self, preparation: Preparation, *, within_s: float, turns: asyncio.Lock | None = None) -> None:
        """Return once the folder is complete. turns: to wait for, which counts as a part of within_s.

        A preparation goes on if its caller is cancelled: the job's next generation finds it. Raises CannotPrepare, and
        ElasticFlowError for a fault of the node.
        """
        running = self._running.get(preparation.key)
        if running is None:
            work = self._prepare_within(within_s, preparation, turns or asyncio.Lock())
            running = self._running[preparation.key] = asyncio.create_task(work, name=f"{preparation.folder.name}")
            running.add_done_callback(lambda ended: self._ended(preparation.key, ended))
        await asyncio.shield(running)

    async def close(self) -> None:
        """End all preparations; nothing of them is left."""
        tasks = set(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, key: Hashable, task: "asyncio.Task[None]") -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # its callers may be gone

    async def _prepare_within(self, timeout_s: float, preparation: Preparation, turns: asyncio.Lock) -> None:
        try:
            async with asyncio.timeout(timeout_s), turns:
                await self._prepare(preparation)
        except TimeoutError:
            raise CannotPrepare(
                f"{preparation.what} took longer than {timeout_s:.0f} s: {preparation.advice}, or raise "
                "prepare_timeout_s of the pool"
            ) from None

    async def _prepare(self, preparation: Preparation) -> None:
        folder = preparation.folder
        if await asyncio.to_thread(folder.is_dir):
            return
        await asyncio.to_thread(folder.parent.mkdir, parents=True, exist_ok=True)
        unfinished = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=folder.parent, prefix=".unfinished-"))
        try:
            await self._run(preparation, unfinished)
            await asyncio.to_thread(_move, unfinished / RESULT, preparation)
        finally:
            await asyncio.to_thread(delete_folder, unfinished)
        self._log.info("FolderPrepared", folder=str(folder), what=preparation.what)

    async def _run(self, preparation: Preparation, unfinished: Path) -> None:
        """Raises CannotPrepare, PreparerEnded, LaunchFailed."""
        process = await self._fork()
        process.channel.send(preparation.order(str(unfinished)))
        replies: list[FromPreparer] = []
        too_large = asyncio.create_task(_until_larger(unfinished, preparation))
        too_large.add_done_callback(lambda _: process.kill())
        try:
            frames = FrameReader[FromPreparer](*get_args(FromPreparer))
            exited = await process.follow(frames, replies.append, lambda _: None)
        finally:
            is_too_large = too_large.done()
            too_large.cancel()
            process.kill()
            await asyncio.wait({process.exited})
        match replies:
            case [Prepared()]:
                return
            case [NotPrepared(error=error)]:
                raise CannotPrepare(f"{preparation.what} cannot be had: {error}")
            case _ if is_too_large:
                limit = f"{preparation.max_bytes:,} bytes or {max_entries(preparation):,} files"
                raise CannotPrepare(f"{preparation.what} took more than {limit}: {preparation.advice}")
            case _:
                raise PreparerEnded(preparation.what, f"exit code {exited.code}, signal {exited.signal}")


def _move(result: Path, preparation: Preparation) -> None:
    folder = preparation.folder
    if result.is_symlink() or not result.is_dir():
        raise CannotPrepare(f"{preparation.what} cannot be had: its own code has replaced the folder of all")
    result.chmod(0o755)
    try:
        result.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another executor with this data folder was faster
            raise


async def _until_larger(folder: Path, preparation: Preparation) -> None:
    while not await asyncio.to_thread(_is_larger, folder, preparation):  # noqa: ASYNC110 - of files
        await asyncio.sleep(_CHECK_EVERY_S)


def _is_larger(folder: Path, preparation: Preparation) -> bool:
    """Also if it cannot be counted: its own code has closed a folder."""
    try:
        num_bytes, num_entries = bytes_and_entries_in(folder, up_to_entries=max_entries(preparation) + 1)
    except OSError:
        return True
    return num_bytes > preparation.max_bytes or num_entries > max_entries(preparation)


def max_entries(preparation: Preparation) -> int:
    """Files and folders that the preparation may make."""
    return preparation.max_bytes // _BYTES_FOR_A_FILE
