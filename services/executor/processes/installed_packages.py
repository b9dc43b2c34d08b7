"""Packages of jobs: installed once per node for each set of requirements."""

import asyncio
import hashlib
import json
import os
import platform
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from elasticflow.services.executor.processes.prepared_folders import Preparation, PreparedFolders
from elasticflow.shared.messages.worker_protocol.preparing import InstallPackages

MAX_INSTALLED_BYTES = 16 << 30  # also of what the installer needs meanwhile


@cache
def _python() -> tuple[Any, ...]:
    """What decides, beside the requirements, which packages they need: the interpreter and what is installed."""
    installed = sorted({(package.name, package.version) for package in distributions()})
    return platform.python_version(), platform.machine(), platform.system(), installed


def packages_digest(requirements: Sequence[str]) -> str:
    """The name of the folder with these packages. Blocking at the first call."""
    return hashlib.sha256(json.dumps([requirements, _python()]).encode()).hexdigest()


class InstalledPackages:
    """Folders packages/<tenant>/<digest> in data_dir. Tenants do not share them: packages run code of their authors."""

    def __init__(self, data_dir: Path, folders: PreparedFolders) -> None:
        self._root = data_dir.resolve() / "packages"
        self._folders = folders
        self._one_at_a_time = defaultdict[str, asyncio.Lock](asyncio.Lock)  # of each tenant

    async def folder(self, tenant: str, requirements: Sequence[str], *, within_s: float) -> str:
        """The folder with these packages; "" without requirements. Raises as `PreparedFolders.prepare`.

        within_s: with the wait for the tenant's others.
        """
        if not requirements:
            return ""
        folder = self._root / tenant / await asyncio.to_thread(packages_digest, requirements)
        installation = Preparation(
            folder=folder,
            what="the installation of its requirements",
            order=lambda unfinished: InstallPackages(folder=unfinished, requirements=tuple(requirements)),
            max_bytes=MAX_INSTALLED_BYTES,
            advice="require less, install some of them on the nodes",
            key=folder,
        )
        await self._folders.prepare(installation, within_s=within_s, turns=self._one_at_a_time[tenant])
        await asyncio.to_thread(os.utime, folder)  # in use, so it is not deleted as old
        return str(folder)
