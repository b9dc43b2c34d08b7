"""Deletes what ended jobs and loads have left in the data folder, once it is old (docs/adr/0062).

A folder that a live job or load needs is never old, whatever its age. Executors that share a data folder may all do
this at once: a folder is renamed, in one step, before its files are deleted, so no executor finds a part of it.
Jobs write these folders: none of them keeps the others from being deleted (docs/adr/0100).
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elasticflow.services.executor.processes.prepared_folders import data_digest, forget_owners
from elasticflow.shared.runtime.process.clock import Clock, fresh_id
from elasticflow.shared.runtime.process.folder_tree import delete_folder
from elasticflow.shared.state.code_in_use import (
    code_digests,
    continued_folders,
    data_in_use,
    requirements_in_use,
    tenants_with_own_environments,
)
from elasticflow.shared.state.load import load_id_of
from elasticflow.shared.state.pool import PoolState

SWEEP_EVERY_S = 3_600.0
RESULTS_KEPT_S = 86_400.0  # of loads; clients delete what they have read
UNPACKED_KEPT_S = 86_400.0  # code, packages and environments, since their last use: they can be made again
FETCHED_KEPT_S = 86_400.0  # data, since it was fetched: what is behind its URI may have changed
LONGEST_DELETION_S = 600.0  # of one folder in one sweep: the others have their turn, whatever still writes to it
_DELETED = ".deleted-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """The folders in one place. kept_s: since the last change; None: forever."""

    place: Path
    kept_s: float | None
    is_needed: Callable[[str], bool]


class OldFiles:
    """The old files of one executor's data folder."""

    def __init__(self, data_dir: Path, clock: Clock, folded: Callable[[], PoolState], log: Any) -> None:
        self._data_dir, self._clock, self._folded, self._log = data_dir, clock, folded, log
        self._stops = threading.Event()

    async def run(self) -> None:
        """Sweep every SWEEP_EVERY_S seconds until cancelled."""
        self._stops.clear()
        try:
            while True:
                await asyncio.to_thread(self.sweep, self._clock.now_s())
                await asyncio.sleep(SWEEP_EVERY_S)
        finally:
            self._stops.set()  # a sweep of millions of files does not delay the end of the executor

    def sweep(self, now_s: float) -> None:
        """Delete what is old now. What goes wrong with one folder ends there."""
        for leftovers in self._leftovers():
            for folder in _folders_in(leftovers.place):
                if self._stops.is_set():
                    return
                try:
                    self._delete_if_old(folder, leftovers, now_s)
                except Exception:
                    self._log.exception("FolderNotDeleted", folder=str(folder))
        try:
            forget_owners(self._data_dir, self._folded().live_jobs)
        except OSError as error:
            self._log.warning("OwnersNotForgotten", error=str(error))

    def _delete_if_old(self, folder: Path, leftovers: Leftovers, now_s: float) -> None:
        """Delete a folder that is old, or that an executor was deleting when it ended."""
        if not folder.name.startswith(_DELETED):
            if leftovers.kept_s is None or _has_changed_since(folder, now_s - leftovers.kept_s):
                return
            if leftovers.is_needed(folder.name):
                return
        self._log.info("FolderDeleted", folder=str(folder))
        give_up_s = time.monotonic() + LONGEST_DELETION_S
        _delete(folder, goes_on=lambda: not self._stops.is_set() and time.monotonic() < give_up_s)

    def _leftovers(self) -> Iterator[Leftovers]:
        config, root, folded = self._folded().config, self._data_dir, self._folded

        def of_live_job(name: str) -> bool:
            return name in folded().live_jobs

        def may_be_continued(name: str) -> bool:
            return of_live_job(name) or name in continued_folders(folded())

        def of_live_load(name: str) -> bool:
            load = folded().loads.get(load_id_of(name))
            return load is not None and load.live and load.folder_name == name

        def is_in_use(tenant: str, digest: str) -> bool:
            return (tenant, digest) in code_digests(folded())

        def may_be_required(tenant: str, _digest: str) -> bool:
            """Whether any live job of its tenant has requirements.

            The digest of another node is another one, and may be of this folder.
            """
            return any(owner == tenant for owner, _lines in requirements_in_use(folded()))

        def may_be_entered(tenant: str, _digest: str) -> bool:
            """As `may_be_required`, for environments."""
            return tenant in tenants_with_own_environments(folded())

        def is_read(tenant: str, digest: str) -> bool:
            return digest in {data_digest(uri) for owner, uri in data_in_use(folded()) if owner == tenant}

        kept_s = config.checkpoints_kept_s
        yield Leftovers(place=root / "checkpoints", kept_s=kept_s, is_needed=may_be_continued)
        yield Leftovers(place=root / "load-logs", kept_s=config.logs_kept_s, is_needed=of_live_load)
        yield Leftovers(place=root / "logs", kept_s=config.logs_kept_s, is_needed=of_live_job)
        yield Leftovers(place=root / "results", kept_s=RESULTS_KEPT_S, is_needed=of_live_load)
        for of_tenant in _folders_in(root / "code"):
            yield Leftovers(place=of_tenant, kept_s=UNPACKED_KEPT_S, is_needed=partial(is_in_use, of_tenant.name))
        for of_tenant in _folders_in(root / "packages"):
            yield Leftovers(place=of_tenant, kept_s=UNPACKED_KEPT_S, is_needed=partial(may_be_required, of_tenant.name))
        for of_tenant in _folders_in(root / "environments"):
            yield Leftovers(place=of_tenant, kept_s=UNPACKED_KEPT_S, is_needed=partial(may_be_entered, of_tenant.name))
        for of_tenant in _folders_in(root / "data"):
            yield Leftovers(place=of_tenant, kept_s=FETCHED_KEPT_S, is_needed=partial(is_read, of_tenant.name))


def _folders_in(place: Path) -> Iterator[Path]:
    """Links to folders are none."""
    with suppress(OSError), os.scandir(place) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from (place / name for name in names)


def _has_changed_since(folder: Path, since_s: float) -> bool:
    """The folder itself, or an entry in it. Also if it is gone: another executor deletes it.

    Jobs can set the time of a file's content, but not that of its inode (ctime).
    """
    try:
        with os.scandir(folder) as entries:
            found = (entry.stat(follow_symlinks=False) for entry in entries)
            return folder.lstat().st_ctime > since_s or any(status.st_ctime > since_s for status in found)
    except OSError:
        return True


def _delete(folder: Path, *, goes_on: Callable[[], bool]) -> None:
    renamed = folder
    if not folder.name.startswith(_DELETED):
        renamed = folder.with_name(f"{_DELETED}{fresh_id()}")
        try:
            folder.rename(renamed)
        except OSError:  # another executor was faster, or the disk is read-only
            return
    delete_folder(renamed, goes_on=goes_on)
