"""The Python environments of jobs: made once per node for each of them, and the fork servers in them.

A fork server of an environment imports packages of users, so it has the rights of these: it is there only if workers
have the rights of their executor anyway. An isolated worker enters its environment by itself (docs/adr/0124).
"""

import asyncio
import hashlib
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from elasticflow.services.executor.processes.fork_server_client import ForkedProcess, ForkServerClient, fork_process
from elasticflow.services.executor.processes.prepared_folders import Installations, PreparedFolders
from elasticflow.shared.extras import DISTRIBUTION
from elasticflow.shared.messages.job_environment import OwnEnvironment
from elasticflow.shared.messages.worker_protocol.forking import MakeEnvironment
from elasticflow.shared.runtime.process import run_module
from elasticflow.shared.runtime.process.environment_python import interpreter_of
from elasticflow.shared.runtime.process.folder_tree import delete_folder

# --- folders -------------------------------------------------------------------------------------------


@cache
def _node() -> tuple[Any, ...]:
    """What decides, beside its specification, what is in an environment: the node's Python and torch, which it may have
    links to, and the engine."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    python = base, platform.python_version(), platform.machine()
    return _version_of(DISTRIBUTION), run_module.__file__, *python, _version_of("torch")


def _version_of(distribution: str) -> str:
    """ "" of one that is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def environment_digest(environment: OwnEnvironment) -> str:
    """The name of the folder with this environment."""
    wanted = environment.python, environment.requirements, environment.constraints
    return hashlib.sha256(json.dumps([wanted, _node()]).encode()).hexdigest()


class JobEnvironments:
    """Folders environments/<tenant>/<digest> in data_dir."""

    def __init__(self, data_dir: Path, folders: PreparedFolders) -> None:
        self._installations = Installations(data_dir.resolve() / "environments", folders)

    async def folder(self, tenant: str, environment: OwnEnvironment | None, *, within_s: float) -> str:
        """The folder with this environment; "" without one. Raises as `Installations.prepared`."""
        if environment is None:
            return ""
        folder = self._installations.place(tenant, environment_digest(environment))
        await asyncio.to_thread(_delete_if_broken, folder)
        return await self._installations.prepared(
            tenant,
            folder,
            lambda unfinished: MakeEnvironment(folder=unfinished, place=str(folder), environment=environment),
            what="its environment",
            advice="require less",
            within_s=within_s,
        )


def _delete_if_broken(folder: Path) -> None:
    """A Python that uv had found may be gone by now: another one is found for it."""
    if folder.is_dir() and not os.path.exists(interpreter_of(folder)):
        delete_folder(folder)


# --- fork servers --------------------------------------------------------------------------------------

FORK_TIMEOUT_S = 20.0  # packages of users run in the server
UNUSED_S = 300.0  # a job that is resized, or a later one of its environment, finds it warm


@dataclass(eq=False)
class _Server:
    """Of one environment. num_processes: those that it has forked, and those that wait for it."""

    num_processes: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    client: ForkServerClient | None = None


class EnvironmentServers:
    """A fork server for each environment in use.

    start: that of a folder; raises LaunchFailed. ended: called with the folder when all of it is gone, and whether it
    has died. unused_s: without a process.
    """

    def __init__(
        self,
        start: Callable[[str], Awaitable[ForkServerClient]],
        ended: Callable[[str, bool], Awaitable[None]],
        *,
        unused_s: float = UNUSED_S,
    ) -> None:
        self._start, self._ended, self._unused_s = start, ended, unused_s
        self._servers: dict[str, _Server] = {}
        self._followers: set[asyncio.Task[None]] = set()

    @property
    def in_use(self) -> tuple[str, ...]:
        """The environments that have a fork server."""
        return tuple(sorted(self._servers))

    async def fork(self, folder: str, slots: Sequence[int]) -> ForkedProcess:
        """A process of this environment. Raises LaunchFailed, TimeoutError, EOFError, OSError."""
        server = self._servers.setdefault(folder, _Server())
        server.num_processes += 1

        def left(_: object = None) -> None:
            server.num_processes -= 1
            server.changed.set()

        try:
            async with server.starting:  # or while the one before ends
                if server.client is None:
                    server.client = await self._start(folder)
                    follower = asyncio.create_task(self._follow(folder, server), name=f"fork server {folder}")
                    self._followers.add(follower)
                    follower.add_done_callback(self._followers.discard)
                client = server.client
            async with asyncio.timeout(FORK_TIMEOUT_S):
                process = await fork_process(client, slots)
        except BaseException:
            left()
            self._forget(folder)
            raise
        process.exited.add_done_callback(left)
        return process

    async def close(self) -> None:
        """End all fork servers with their workers."""
        for follower in tuple(self._followers):
            follower.cancel()
        if self._followers:
            await asyncio.wait(self._followers)

    async def _follow(self, folder: str, server: _Server) -> None:
        """Until it dies or is unused; then a later process of the environment gets a new one."""
        assert server.client is not None
        client = server.client
        died = asyncio.create_task(client.ended())
        try:
            while not died.done() and not await self._is_unused(server, died):
                pass
        finally:
            async with server.starting:  # what is killed below by its name is none of the next one
                server.client = None
                has_died = died.done()
                died.cancel()
                await client.end()
                await self._ended(folder, has_died)
            self._forget(folder)

    async def _is_unused(self, server: _Server, died: "asyncio.Task[None]") -> bool:
        """Whether it had no process for long; False as soon as anything has changed."""
        server.changed.clear()
        changed = asyncio.create_task(server.changed.wait())
        unused_s = None if server.num_processes else self._unused_s
        done, _ = await asyncio.wait({died, changed}, timeout=unused_s, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        return not done and not server.num_processes

    def _forget(self, folder: str) -> None:
        server = self._servers.get(folder)
        if server is not None and server.client is None and not server.num_processes:
            del self._servers[folder]
