"""Packages of jobs: installed once per node for each set of requirements, in a child process, into a folder."""

import asyncio
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, ClassVar, get_args

from elasticflow.services.executor.processes.forked_process import ForkedProcess
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.worker_protocol.frames import FrameReader
from elasticflow.shared.messages.worker_protocol.installing import (
    PACKAGES,
    FromInstaller,
    InstallPackages,
    PackagesInstalled,
    PackagesNotInstalled,
)

MAX_INSTALLED_BYTES = 16 << 30  # also of what the installer needs meanwhile
_CHECK_EVERY_S = 1.0


class RequirementsUnusable(Exception):
    """The requirements of this job cannot be installed here: the job fails with this message."""


@dataclass(eq=False)
class InstallerEnded(Retry):
    """A fault of the node: another attempt may succeed."""

    how: str

    MESSAGE: ClassVar[str] = "the process that installs its requirements has ended: {how}"


@cache
def _python() -> tuple[Any, ...]:
    """What decides, beside the requirements, which packages they need: the interpreter and what is installed."""
    installed = sorted({(package.name, package.version) for package in distributions()})
    return platform.python_version(), platform.machine(), platform.system(), installed


def packages_digest(requirements: Sequence[str]) -> str:
    """The name of the folder with these packages. Blocking at the first call."""
    return hashlib.sha256(json.dumps([requirements, _python()]).encode()).hexdigest()


class InstalledPackages:
    """Folders packages/<tenant>/<digest> in data_dir. Tenants do not share them: packages run code of their authors.

    fork: a process of the fork server, `Launcher.fork`.
    """

    def __init__(self, data_dir: Path, fork: Callable[[], Awaitable[ForkedProcess]], log: Any) -> None:
        self._root = data_dir.resolve() / "packages"
        self._fork, self._log = fork, log
        self._installing: dict[Path, asyncio.Task[None]] = {}
        self._one_at_a_time = defaultdict[Path, asyncio.Lock](asyncio.Lock)  # of each tenant

    async def folder(self, tenant: str, requirements: Sequence[str], *, within_s: float) -> str:
        """The folder with these packages; "" without requirements. within_s: with the wait for the tenant's others.

        An installation goes on if its caller is cancelled: the job's next generation finds it. Raises
        RequirementsUnusable, and ElasticFlowError for a fault of the node.
        """
        if not requirements:
            return ""
        folder = self._root / tenant / await asyncio.to_thread(packages_digest, requirements)
        installing = self._installing.get(folder)
        if installing is None:
            work = self._install_within(within_s, folder, requirements)
            installing = self._installing[folder] = asyncio.create_task(work, name=f"install {folder.name}")
            installing.add_done_callback(lambda ended: self._ended(folder, ended))
        await asyncio.shield(installing)
        return str(folder)

    async def close(self) -> None:
        """End all installations; nothing of them is left."""
        tasks = set(self._installing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, folder: Path, task: "asyncio.Task[None]") -> None:
        del self._installing[folder]
        if not task.cancelled():
            task.exception()  # its callers may be gone

    async def _install_within(self, timeout_s: float, folder: Path, requirements: Sequence[str]) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._install(folder, requirements)
        except TimeoutError:
            raise RequirementsUnusable(
                f"its requirements were not installed within {timeout_s:.0f} s: install some of them on the nodes, or "
                "raise prepare_timeout_s of the pool"
            ) from None

    async def _install(self, folder: Path, requirements: Sequence[str]) -> None:
        async with self._one_at_a_time[folder.parent]:
            if not await asyncio.to_thread(folder.is_dir):
                await asyncio.to_thread(folder.parent.mkdir, parents=True, exist_ok=True)
                unfinished = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=folder.parent, prefix=".unfinished-"))
                try:
                    await self._run_installer(unfinished, requirements)
                    await asyncio.to_thread(_move, unfinished / PACKAGES, folder)
                finally:
                    await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
                self._log.info("PackagesInstalled", folder=str(folder), requirements=len(requirements))
            await asyncio.to_thread(os.utime, folder)  # in use, so it is not deleted as old

    async def _run_installer(self, unfinished: Path, requirements: Sequence[str]) -> None:
        """Raises RequirementsUnusable, InstallerEnded, LaunchFailed."""
        process = await self._fork()
        order = InstallPackages(folder=str(unfinished), requirements=tuple(requirements))
        process.channel.send(order)
        replies: list[FromInstaller] = []
        too_large = asyncio.create_task(_until_too_large(unfinished))
        too_large.add_done_callback(lambda _: process.kill())
        try:
            frames = FrameReader[FromInstaller](*get_args(FromInstaller))
            exited = await process.follow(frames, replies.append, lambda _: None)
        finally:
            is_too_large = too_large.done()
            too_large.cancel()
            process.kill()
            await asyncio.wait({process.exited})
        match replies:
            case [PackagesInstalled()]:
                return
            case [PackagesNotInstalled(error=error)]:
                raise RequirementsUnusable(f"its requirements cannot be installed: {error}")
            case _ if is_too_large:
                raise RequirementsUnusable(
                    f"its requirements take more than {MAX_INSTALLED_BYTES:,} bytes: require less, or install them on "
                    "the nodes"
                )
            case _:
                raise InstallerEnded(f"exit code {exited.code}, signal {exited.signal}")


def _move(packages: Path, folder: Path) -> None:
    if packages.is_symlink() or not packages.is_dir():
        raise RequirementsUnusable("its requirements cannot be installed: one of them has replaced the folder of all")
    packages.chmod(0o755)
    try:
        packages.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another executor with this data folder was faster
            raise


async def _until_too_large(folder: Path) -> None:
    while await asyncio.to_thread(_bytes_in, folder) <= MAX_INSTALLED_BYTES:  # noqa: ASYNC110 - of files
        await asyncio.sleep(_CHECK_EVERY_S)


def _bytes_in(folder: Path) -> int:
    """Files that vanish meanwhile count nothing."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                continue
    return total
