"""Deletes what ended jobs and loads have left in the data folder, once it is old (docs/adr/0062).

A folder that a live job or load needs is never old, whatever its age. Executors that share a data folder may all do
this at once: a folder is renamed, in one step, before its files are deleted, so no executor finds a part of it.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elasticflow.services.executor.processes.fetched_data import data_digest
from elasticflow.shared.runtime.process.clock import Clock, fresh_id
from elasticflow.shared.state.code_in_use import code_digests, data_in_use, requirements_in_use
from elasticflow.shared.state.pool import PoolState

SWEEP_EVERY_S = 3_600.0
RESULTS_KEPT_S = 86_400.0  # of loads; clients delete what they have read
UNPACKED_KEPT_S = 86_400.0  # code and packages, since their last use: they can be unpacked or installed again
FETCHED_KEPT_S = 86_400.0  # data, since it was fetched: what is behind its URI may have changed
_DELETED = ".deleted-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """The folders in one place. kept_s: since the last change; None: for ever."""

    place: Path
    kept_s: float | None
    is_needed: Callable[[str], bool]


class OldFiles:
    """Of one executor's data folder."""

    def __init__(self, data_dir: Path, clock: Clock, folded: Callable[[], PoolState], log: Any) -> None:
        self._data_dir, self._clock, self._folded, self._log = data_dir, clock, folded, log

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.to_thread(self.sweep, self._clock.now_s())
            await asyncio.sleep(SWEEP_EVERY_S)

    def sweep(self, now_s: float) -> None:
        """Delete what is old now."""
        for leftovers in self._leftovers():
            for folder in _old_folders(leftovers, now_s):
                self._log.info("FolderDeleted", folder=str(folder))
                _delete(folder)

    def _leftovers(self) -> Iterator[Leftovers]:
        config, root, folded = self._folded().config, self._data_dir, self._folded

        def of_live_job(name: str) -> bool:
            return name in folded().live_jobs

        def of_live_load(name: str) -> bool:
            load = folded().loads.get(name)
            return load is not None and load.live

        def is_in_use(tenant: str, digest: str) -> bool:
            return (tenant, digest) in code_digests(folded())

        def may_be_required(tenant: str, _digest: str) -> bool:
            """By any live job of its tenant: the digest of another node is another one, and may be of this folder."""
            return any(owner == tenant for owner, _lines in requirements_in_use(folded()))

        def is_read(tenant: str, digest: str) -> bool:
            return digest in {data_digest(uri) for owner, uri in data_in_use(folded()) if owner == tenant}

        kept_s = config.checkpoints_kept_s
        yield Leftovers(place=root / "checkpoints", kept_s=kept_s, is_needed=of_live_job)
        yield Leftovers(place=root / "load-logs", kept_s=config.logs_kept_s, is_needed=of_live_load)
        yield Leftovers(place=root / "logs", kept_s=config.logs_kept_s, is_needed=of_live_job)
        yield Leftovers(place=root / "results", kept_s=RESULTS_KEPT_S, is_needed=of_live_load)
        for of_tenant in (root / "code").glob("*/"):
            yield Leftovers(place=of_tenant, kept_s=UNPACKED_KEPT_S, is_needed=partial(is_in_use, of_tenant.name))
        for of_tenant in (root / "packages").glob("*/"):
            yield Leftovers(place=of_tenant, kept_s=UNPACKED_KEPT_S, is_needed=partial(may_be_required, of_tenant.name))
        for of_tenant in (root / "data").glob("*/"):
            yield Leftovers(place=of_tenant, kept_s=FETCHED_KEPT_S, is_needed=partial(is_read, of_tenant.name))


def _old_folders(leftovers: Leftovers, now_s: float) -> Iterator[Path]:
    """Also those that an executor was deleting when it ended."""
    for folder in leftovers.place.glob("*/"):
        if folder.name.startswith(_DELETED):
            yield folder
        elif leftovers.kept_s is not None and now_s - _changed_at_s(folder, now_s) > leftovers.kept_s:
            yield from () if leftovers.is_needed(folder.name) else (folder,)


def _changed_at_s(folder: Path, now_s: float) -> float:
    """The last change of the folder or of a file in it; now, if it is being deleted.

    Jobs can write it: a link counts itself, and a time in the future is one that they set.
    """
    try:
        found = [path.lstat() for path in (folder, *folder.iterdir())]
    except OSError:
        return float("inf")
    return max(status.st_mtime if status.st_mtime <= now_s else status.st_ctime for status in found)


def _delete(folder: Path) -> None:
    renamed = folder
    if not folder.name.startswith(_DELETED):
        renamed = folder.with_name(f"{_DELETED}{fresh_id()}")
        try:
            folder.rename(renamed)
        except OSError:  # another executor was faster, or the disk is read-only
            return
    shutil.rmtree(renamed, ignore_errors=True)
