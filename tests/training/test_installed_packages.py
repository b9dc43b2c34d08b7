"""Packages that jobs require, installed by a real fork of the fork server. Without a network."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from elasticflow.services.executor.processes import prepared_folders
from elasticflow.services.executor.processes.prepared_folders import (
    CannotPrepare,
    InstalledPackages,
    PreparedFolders,
    PreparerEnded,
)
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from tests.support.task_runners import Runners, all_of, run
from tests.support.wheels import from_folder, make_wheel

pytestmark = pytest.mark.asyncio(loop_scope="session")

WITHIN_S = 600.0  # a preparation has a low priority: on a busy machine it takes minutes


class Packages(InstalledPackages):
    """Of one executor with the data folder `data`. processes: those that installed something."""

    def __init__(self, folder: Path, launcher) -> None:
        self.processes = []
        self.data, self.wheels = folder / "data", folder / "wheels"

        async def fork():
            self.processes.append(await launcher.fork())
            return self.processes[-1]

        self.folders = PreparedFolders(fork, SilentLog())
        super().__init__(self.data, self.folders)

    async def install(self, *requirements: str, tenant: str = "lab", within_s: float = WITHIN_S) -> Path:
        lines = from_folder(self.wheels, *requirements)
        return Path(await self.folder(tenant, lines, within_s=within_s))

    def left(self) -> list[Path]:
        return [path for tenant in (self.data / "packages").glob("*") for path in tenant.iterdir()]


@pytest_asyncio.fixture(loop_scope="session")
async def packages(node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Packages]:
    make_wheel(tmp_path / "wheels", "ef_tiny", "1.5")
    packages = Packages(tmp_path, node.launcher)
    yield packages
    await packages.folders.close()


async def test_packages_are_installed_once_for_all_workers_of_a_node(node, packages, tmp_path):
    folders = await asyncio.gather(*(packages.install("ef_tiny") for _ in range(4)))
    again = await packages.install("ef_tiny")
    restarted = Packages(tmp_path, node.launcher)
    assert {*folders, again, await restarted.install("ef_tiny")} == {folders[0]}
    assert (len(packages.processes), len(restarted.processes)) == (1, 0)
    assert (folders[0] / "ef_tiny.py").read_text() == "VERSION = '1.5'\n"
    assert packages.left() == [folders[0]]
    assert await packages.folder("lab", (), within_s=WITHIN_S) == ""


async def test_tenants_do_not_share_packages(packages):
    mine, yours = await packages.install("ef_tiny"), await packages.install("ef_tiny", tenant="other")
    assert (mine.name, mine.parent.name, yours.parent.name) == (yours.name, "lab", "other")
    assert len(packages.processes) == 2


async def test_requirements_that_do_not_resolve_fail_their_job_and_nothing_else(packages, runners: Runners):
    neighbour = await runners.start("double")
    for number in range(2):
        with pytest.raises(CannotPrepare) as unusable:
            await packages.install("ef_tiny==9")
        assert "the installation of its requirements cannot be had: pip ended with exit code 1:\n" in str(
            unusable.value
        )
        assert "No matching distribution found for ef_tiny==9" in str(unusable.value)
        assert len(packages.processes) == number + 1, "a later job tries again"
    assert packages.left() == []
    assert await all_of(run(neighbour, 1)) == [2]
    assert await packages.install("ef_tiny")


async def test_another_version_of_what_workers_have_loaded_is_refused(packages):
    with pytest.raises(CannotPrepare, match=r"numpy<1\.20: workers have loaded numpy \d"):
        await packages.install("numpy<1.20")
    with pytest.raises(CannotPrepare, match=r"torch==1\.13: workers have loaded torch \d"):
        await packages.install("torch==1.13")
    assert await packages.install("torch", "numpy"), "any version is the one of the node"
    assert packages.left()
    assert not list(packages.left()[0].iterdir())


async def test_an_installation_that_takes_too_long_is_killed(packages, node):
    async def stopped():
        process = await node.launcher.fork()
        os.kill(process.pid, signal.SIGSTOP)  # it never replies
        packages.processes.append(process)
        return process

    packages.folders._fork = stopped
    with pytest.raises(CannotPrepare, match="its requirements took longer than 2 s: require less"):
        await packages.install("ef_tiny", within_s=2.0)
    assert packages.processes[0].exited.done()
    assert packages.left() == []


async def test_an_installation_that_fills_the_disk_is_killed(packages, monkeypatch):
    monkeypatch.setattr(prepared_folders, "MAX_INSTALLED_BYTES", -1)
    with pytest.raises(CannotPrepare, match="took more than -1 bytes or -1 files: require less"):
        await packages.install("ef_tiny")
    assert packages.left() == []


async def test_an_installer_that_is_killed_is_no_fault_of_its_job(packages):
    installing = asyncio.create_task(packages.install("ef_tiny"))
    while not packages.processes:  # noqa: ASYNC110 - processes do not signal their start
        await asyncio.sleep(0.01)
    packages.processes[0].kill()
    with pytest.raises(PreparerEnded, match="has ended: exit code None, signal 9"):
        await installing
    assert packages.left() == []


async def test_an_installation_goes_on_without_the_worker_that_waited(packages):
    first = asyncio.create_task(packages.install("ef_tiny"))
    while not packages.processes:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)
    first.cancel()
    assert await packages.install("ef_tiny")
    assert len(packages.processes) == 1


async def test_an_executor_that_ends_leaves_no_unfinished_folder(packages):
    first = asyncio.create_task(packages.install("ef_tiny"))
    while not packages.processes:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)
    await packages.folders.close()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert packages.processes[0].exited.done()
    assert packages.left() == []
