"""Data of jobs: fetched once per node by its URI, or at a path that the node has."""

import asyncio
import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from elasticflow.services.executor.processes.prepared_folders import Preparation, PreparedFolders
from elasticflow.shared.messages.job_environment import local_path
from elasticflow.shared.messages.worker_protocol.preparing import FetchData

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
        """Where the data is, by name; whether a local path exists is known to the worker only.

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
