"""Folders that a child process fills, once per node: packages and data of jobs."""

import asyncio
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, ClassVar, get_args

from elasticflow.services.executor.processes.fork_server_client import ForkedProcess
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.job_environment import local_path
from elasticflow.shared.messages.job_spec import ContinuedJob
from elasticflow.shared.messages.worker_protocol.forking import (
    RESULT,
    FetchData,
    FromPreparer,
    InstallPackages,
    NotPrepared,
    Prepared,
    ToPreparer,
)
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader
from elasticflow.shared.runtime.process.files import rename_durably, write_durably
from elasticflow.shared.runtime.process.folder_tree import (
    OWNERS,
    are_folders_of,
    bytes_and_entries_in,
    delete_folder,
    owner_of,
)
from elasticflow.shared.state.code_in_use import folder_set_aside

_CHECK_EVERY_S = 1.0
_LOOK_AGAIN_S = 1.0  # for a checkpoint that the shared storage may not show yet
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

        def take(reply: FromPreparer) -> None:
            if replies:
                raise BrokenChannel("it replies more than once")
            replies.append(reply)

        too_large = asyncio.create_task(_until_larger(unfinished, preparation))
        too_large.add_done_callback(lambda _: process.kill())
        try:
            frames = FrameReader[FromPreparer](*get_args(FromPreparer))
            exited = await process.follow(frames, take, lambda _: None)
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
    """Whether the folder exceeds its bounds, or cannot be counted because its own code has closed a folder."""
    try:
        num_bytes, num_entries = bytes_and_entries_in(folder, up_to_entries=max_entries(preparation) + 1)
    except OSError:
        return True
    return num_bytes > preparation.max_bytes or num_entries > max_entries(preparation)


def max_entries(preparation: Preparation) -> int:
    """Files and folders that the preparation may make."""
    return preparation.max_bytes // _BYTES_FOR_A_FILE


# --- Data of jobs: fetched once per node by its URI, or at a path that the node has --------------------

_PART_OF_FREE_DISK = 0.5  # that one fetch may fill: logs and checkpoints of all jobs are on the same disk


def data_digest(uri: str) -> str:
    """The name of the folder with the copy."""
    return hashlib.sha256(uri.encode()).hexdigest()


class FetchedData:
    """Folders data/<tenant>/<digest of the URI> in data_dir, with one file or folder each.

    Tenants do not share them: what a URI gives depends on who asks. The age of a copy counts from its fetch, so changed
    data is fetched again some time.
    """

    def __init__(self, data_dir: Path, folders: PreparedFolders) -> None:
        self._root, self._folders = data_dir.resolve() / "data", folders

    async def paths(
        self, tenant: str, data: Mapping[str, str], environment: Mapping[str, str], *, within_s: float
    ) -> dict[str, str]:
        """The paths of the data, by name; whether a local path exists is known to the worker only.

        environment: variables and secrets of the job, for libraries that ask for credentials. Raises as
        `PreparedFolders.prepare`.
        """
        paths = (self._path(tenant, name, uri, environment, within_s) for name, uri in data.items())
        return dict(zip(data, await asyncio.gather(*paths), strict=True))

    async def _path(self, tenant: str, name: str, uri: str, environment: Mapping[str, str], within_s: float) -> str:
        if (path := local_path(uri)) is not None:
            return path
        folder = self._root / tenant / data_digest(uri)
        await asyncio.to_thread(folder.parent.mkdir, parents=True, exist_ok=True)
        free_bytes = (await asyncio.to_thread(shutil.disk_usage, folder.parent)).free
        fetch = Preparation(
            folder=folder,
            what=f"its data {name} ({uri})",
            order=lambda unfinished: FetchData(folder=unfinished, uri=uri, environment=environment),
            max_bytes=int(_PART_OF_FREE_DISK * free_bytes),
            advice="give the nodes a larger or faster disk, mount the data there and name it as file:///",
            key=(folder, *sorted(environment.items())),  # other credentials may succeed where these fail
        )
        await self._folders.prepare(fetch, within_s=within_s)
        (copy,) = await asyncio.to_thread(lambda: list(folder.iterdir()))
        return str(copy)


# --- Packages of jobs: installed once per node for each set of requirements ----------------------------

MAX_INSTALLED_BYTES = 16 << 30  # also of what the installer needs meanwhile


@cache
def _python() -> tuple[Any, ...]:
    """What decides, beside the requirements, which packages they need: the interpreter and what is installed."""
    installed = sorted({(package.name, package.version) for package in distributions()})
    return platform.python_version(), platform.machine(), platform.system(), installed


def packages_digest(requirements: Sequence[str]) -> str:
    """The name of the folder with these packages. Blocking at the first call."""
    return hashlib.sha256(json.dumps([requirements, _python()]).encode()).hexdigest()


class Installations:
    """Folders <root>/<tenant>/<digest>, made by installers, one at a time for each tenant. Tenants do not share them:
    packages run code of their authors."""

    def __init__(self, root: Path, folders: PreparedFolders) -> None:
        self._root, self._folders = root, folders
        self._one_at_a_time = defaultdict[str, asyncio.Lock](asyncio.Lock)  # of each tenant

    def place(self, tenant: str, digest: str) -> Path:
        return self._root / tenant / digest

    async def prepared(
        self, tenant: str, folder: Path, order: Callable[[str], ToPreparer], *, what: str, advice: str, within_s: float
    ) -> str:
        """The folder, with what the order makes. Raises as `PreparedFolders.prepare`. within_s: with the wait for the
        tenant's others."""
        installation = Preparation(
            folder=folder, what=what, order=order, max_bytes=MAX_INSTALLED_BYTES, advice=advice, key=folder
        )
        await self._folders.prepare(installation, within_s=within_s, turns=self._one_at_a_time[tenant])
        await asyncio.to_thread(os.utime, folder)  # in use, so it is not deleted as old
        return str(folder)


class InstalledPackages:
    """Folders packages/<tenant>/<digest> in data_dir."""

    def __init__(self, data_dir: Path, folders: PreparedFolders) -> None:
        self._installations = Installations(data_dir.resolve() / "packages", folders)

    async def folder(self, tenant: str, requirements: Sequence[str], *, within_s: float) -> str:
        """The folder with these packages; "" without requirements. Raises as `Installations.prepared`."""
        if not requirements:
            return ""
        digest = await asyncio.to_thread(packages_digest, requirements)
        return await self._installations.prepared(
            tenant,
            self._installations.place(tenant, digest),
            lambda unfinished: InstallPackages(folder=unfinished, requirements=tuple(requirements)),
            what="the installation of its requirements",
            advice="require less, install some of them on the nodes",
            within_s=within_s,
        )


# --- folder owners -------------------------------------------------------------------------------------
# Makes the folders of a job those of this job alone, and moves those of an earlier job of its id away.

PLACES = ("checkpoints", "logs")
_LOCK = ".lock"


def take_folders(data_dir: Path, job_id: str, identity: str) -> list[Path]:
    """Make them this job's. Returns where those of another job are now. Blocking; raises OSError.

    Executors that share the data folder take turns.
    """
    if owner_of(data_dir, job_id) == identity:
        return []
    with _locked(data_dir):
        owner = owner_of(data_dir, job_id)
        moved = list(_set_aside(data_dir, job_id, owner)) if owner not in ("", identity) else []
        if owner != identity:
            write_durably(data_dir / OWNERS / job_id, identity.encode())
        return moved


class CheckpointMissing(CannotPrepare):
    """The promised checkpoint of the job that is continued is not shown here.

    iterations: of its checkpoints that are. waited_s: how long this node has looked.
    """

    def __init__(self, continued: ContinuedJob, iterations: list[int], waited_s: float = 0.0) -> None:
        super().__init__(_no_checkpoint(continued, iterations, waited_s))
        self.iterations = iterations
        # a folder that shows a newer one shows this one, too, unless it was replaced
        self.may_appear = max(iterations, default=0) <= continued.iteration


async def bring_promised_checkpoints(data_dir: Path, job_id: str, continued: ContinuedJob, *, wait_s: float) -> None:
    """As `bring_checkpoints`, but look again for up to wait_s: shared storage shows new files late."""
    time_s = asyncio.get_running_loop().time
    begun_s = time_s()
    while True:
        try:
            return await asyncio.to_thread(bring_checkpoints, data_dir, job_id, continued)
        except CheckpointMissing as missing:
            if not missing.may_appear:
                raise
            if time_s() - begun_s >= wait_s:
                raise CheckpointMissing(continued, missing.iterations, wait_s) from None
        await asyncio.sleep(_LOOK_AGAIN_S)


def bring_checkpoints(data_dir: Path, job_id: str, continued: ContinuedJob) -> None:
    """Make the checkpoints of the job that it continues those of this job, too, before its first worker starts.

    They are linked, so they stay when the folder of that job is deleted. An older one than the ledger knows is none to
    begin from. Blocking; raises OSError, and CheckpointMissing.
    """
    own, promised = data_dir / "checkpoints" / job_id, continued.iteration
    with _locked(data_dir):
        found = _shown_checkpoints(data_dir, continued)
        here = {file.name: iteration for file, iteration in checkpoints_in(own)}
        if here.keys() - found.keys() and max(here.values()) >= promised:
            return  # it has written some itself, or those of the other job are gone
        iterations = sorted({iteration for file, iteration in found.values() if is_whole(file.name)})
        if not any(iteration == promised if continued.is_exact else iteration >= promised for iteration in iterations):
            raise CheckpointMissing(continued, iterations)
        wanted = [file for file, iteration in found.values() if not continued.is_exact or iteration == promised]
        own.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # an executor without rights over it has workers of its own user
            status = wanted[0].lstat()
            os.chown(own, status.st_uid, status.st_gid)
        for file in sorted(wanted, key=lambda file: (is_whole(file.name), file.name)):  # a checkpoint needs its parts
            _link(file, own / file.name)


_MAX_FILES = 10_000  # of a job: two checkpoints with the parts of thousands of workers
CHECKPOINT_NAME = re.compile(r"g\d{10}-i(\d{14})-(?:p\d{5}-)?[0-9a-f]{64}\.(?:ckpt|part)")  # as the store names them


def _shown_checkpoints(data_dir: Path, job: ContinuedJob) -> dict[str, tuple[Path, int]]:
    """The files of its checkpoints that are shown here, with their iterations, by name.

    A job that never started has none: then those count that it had continued, up to the promised iteration. Later ones
    are of other work than that which it continued.
    """
    for folder in (data_dir / "checkpoints", data_dir / OWNERS):
        _open_anew(folder)
    if own := _checkpoints_of(data_dir, job.job_id, job.identity):
        return own  # with those that it had continued: they were linked before its first worker started
    earlier = (_checkpoints_of(data_dir, job.job_id, identity) for identity in job.earlier)
    return {name: found for each in earlier for name, found in each.items() if found[1] <= job.iteration}


def _checkpoints_of(data_dir: Path, job_id: str, identity: str) -> dict[str, tuple[Path, int]]:
    place = data_dir / "checkpoints"
    folders = [place / folder_set_aside(job_id, identity)]
    if are_folders_of(data_dir, job_id, identity):
        folders.append(place / job_id)
    return {file.name: (file, iteration) for folder in folders for file, iteration in checkpoints_in(folder)}


def _open_anew(folder: Path) -> None:
    """A client of NFS asks its server anew for a folder that is opened; without that it knows names of a while ago."""
    with suppress(FileNotFoundError):
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))


def checkpoints_in(folder: Path) -> Iterator[tuple[Path, int]]:
    """Checkpoints and their parts, with their iterations. Workers could have put links there, also in place of the
    folder. Raises CannotPrepare if they have put more than _MAX_FILES there: other jobs wait for the lock meanwhile."""
    if folder.is_symlink():
        return
    num_files = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if (named := CHECKPOINT_NAME.fullmatch(entry.name)) is not None and entry.is_file(follow_symlinks=False):
                num_files += 1
                if num_files > _MAX_FILES:
                    raise CannotPrepare(f"{folder} has more than {_MAX_FILES} files that are named as checkpoints")
                yield Path(entry.path), int(named[1])


def is_whole(name: str) -> bool:
    """Whether the file with this name is a checkpoint, and no part of one."""
    return name.endswith(".ckpt")


def _no_checkpoint(continued: ContinuedJob, iterations: list[int], waited_s: float) -> str:
    missing = f"no checkpoint of iteration {continued.iteration} of {continued.job_id}"
    others = " or ".join(f"--from {continued.job_id}@{iteration}" for iteration in iterations)
    if not waited_s:
        return f"{missing} is on this node" + (f": take {others}" if others else "")
    found = f"only {' and '.join(map(str, iterations))}" if iterations else "nor another one of that job"
    share = "set EF_DATA_DIR to the same shared storage on all nodes of the pool"
    return f"{missing} has appeared on this node within {waited_s:.0f} s, {found}: {share}" + (
        f", or take {others}" if others else ""
    )


def _link(file: Path, target: Path) -> None:
    """Another file system has copies. Raises OSError."""
    try:
        os.link(file, target, follow_symlinks=False)
    except FileExistsError:
        return
    except OSError:
        part = target.with_name(f".{target.name}")  # an executor that dies meanwhile leaves no half of a file
        shutil.copy2(file, part, follow_symlinks=False)
        with part.open("rb") as copy:
            os.fsync(copy.fileno())
        rename_durably(part, target)


def forget_owners(data_dir: Path, live_jobs: Container[str]) -> None:
    """Delete the records of ended jobs whose folders are gone. Blocking; raises OSError."""
    if not (data_dir / OWNERS).exists():
        return
    with _locked(data_dir):
        for record in (data_dir / OWNERS).iterdir():
            if record.name == _LOCK or record.name in live_jobs:
                continue
            if not any((data_dir / place / record.name).exists() for place in PLACES):
                record.unlink()


def _set_aside(data_dir: Path, job_id: str, owner: str) -> Iterator[Path]:
    """Under names that no job can have."""
    for place in PLACES:
        folder = data_dir / place / job_id
        with suppress(FileNotFoundError):
            yield folder.rename(folder.with_name(folder_set_aside(job_id, owner)))


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    folder = data_dir / OWNERS
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
