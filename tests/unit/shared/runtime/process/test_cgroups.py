"""Control groups of workers: in a folder that imitates them, and how processes enter and leave real ones."""

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticflow.shared.runtime.process.isolation import cgroups
from elasticflow.shared.runtime.process.isolation.cgroups import (
    MAX_OPEN_FILES,
    MAX_PROCESSES,
    WorkerCgroups,
    enter_group,
    open_cgroups,
)
from testbed.real_pool import eventually

FORKS_AWAY = """
import os, sys, time
from pathlib import Path
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.runtime.process.isolation.isolated_process import enter_isolation, fork_isolated

isolation = Isolation(namespaces=False, cgroup=sys.argv[1])
pid = fork_isolated(isolation)
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
enter_isolation(isolation)
if not os.fork():
    os.setsid()  # it leaves the process group, and stays in the control group
    os.closerange(1, 3)
    time.sleep(600)
print(Path("/proc/self/cgroup").read_text(), flush=True)
os._exit(0)
"""


def imitation(folder: Path, controllers: str = "cpu memory pids") -> Path:
    """Files as the kernel makes them; whatever is written stays there."""
    folder.mkdir(exist_ok=True)
    (folder / "cgroup.controllers").write_text(controllers)
    return folder


def test_each_worker_has_a_group_with_its_limits(tmp_path: Path) -> None:
    groups = open_cgroups(imitation(tmp_path / "cgroup"), "n1", memory_bytes=1 << 30)
    enabled = [tmp_path / "cgroup", tmp_path / "cgroup" / "workers-n1"]
    assert {(each / "cgroup.subtree_control").read_text() for each in enabled} == {"+memory +pids"}
    first, second = groups.add(), groups.add()
    assert first != second
    assert first.parent == enabled[1]
    assert (first / "pids.max").read_text() == str(MAX_PROCESSES)
    assert (first / "memory.max").read_text() == str(1 << 30)
    assert (first / "memory.oom.group").read_text() == "1"
    unlimited = open_cgroups(tmp_path / "cgroup", "n2", memory_bytes=0).add()
    assert not (unlimited / "memory.max").exists()


def test_a_group_is_removed_with_its_worker_or_later_and_after_a_killed_executor(tmp_path: Path) -> None:
    folder = imitation(tmp_path / "cgroup")
    groups = open_cgroups(folder, "n1", memory_bytes=0)
    busy, left_over = groups.add(), groups.add()
    groups.end(busy)
    assert (busy / "cgroup.kill").read_text() == "1"
    assert busy.exists(), "a folder with files is like a group with processes"
    emptied(busy)
    groups.add()
    assert not busy.exists()
    restarted = open_cgroups(folder, "n1", memory_bytes=0)
    assert not (left_over / "cgroup.kill").exists(), "so far, another executor may run"
    restarted.end_left_over()
    assert (left_over / "cgroup.kill").read_text() == "1"
    emptied(left_over)
    restarted.add()
    assert not left_over.exists()


def emptied(group: Path) -> None:
    for file in group.iterdir():
        file.unlink()


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = open_cgroups(imitation(tmp_path / "cgroup", "cpu"), "n1", memory_bytes=1 << 30)
    assert groups.unlimited == f"{tmp_path / 'cgroup'} has no controllers memory, pids: delegate them"
    assert list(groups.add().iterdir()) == [], "it ends its processes, and limits nothing"
    closed = tmp_path / "cgroup" / "workers-n2" / "trial" / "cgroup.procs"
    closed.mkdir(parents=True)
    with pytest.raises(OSError, match="no process can enter"):
        open_cgroups(tmp_path / "cgroup", "n2", memory_bytes=0)
    with pytest.raises(OSError, match="absent"):
        open_cgroups(tmp_path / "absent", "n1", memory_bytes=0)

    def no_groups() -> Path:
        raise OSError("no cgroup v2 is mounted")

    monkeypatch.setattr(cgroups, "_own_group", no_groups)
    with pytest.raises(OSError, match="no cgroup v2"):
        open_cgroups(None, "n1", memory_bytes=0)


def test_an_executor_moves_into_a_leaf_of_its_own_group_and_back_if_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, entered = imitation(tmp_path / "cgroup"), list[Path]()
    monkeypatch.setattr(cgroups, "_own_group", lambda: own)
    monkeypatch.setattr(cgroups, "enter_group", entered.append)
    open_cgroups(None, "n1", memory_bytes=0)
    assert entered == [own / "executor"]
    (own / "cgroup.subtree_control").unlink()
    (own / "cgroup.subtree_control").mkdir()  # refuses to be written
    assert "subtree_control" in open_cgroups(None, "n1", memory_bytes=0).unlimited
    assert entered == [own / "executor", own / "executor", own]


@pytest.fixture
def real_group() -> Iterator[Path]:
    """A group of the kernel, without controllers."""
    try:
        group = cgroups._own_group() / f"test-{os.getpid()}"
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup v2 can be written here: {error}")
    yield group
    cgroups._kill_all(group)
    while group.exists():
        with contextlib.suppress(OSError):
            group.rmdir()


async def test_a_killed_executors_workers_end_with_their_groups_at_its_next_start(real_group: Path) -> None:
    group = open_cgroups(real_group, "n1", memory_bytes=0).add()
    enters = [sys.executable, "-c", FORKS_AWAY, str(group)]
    await asyncio.to_thread(subprocess.run, enters, capture_output=True, timeout=60, check=True)
    assert (group / "cgroup.procs").read_text().split()
    restarted = open_cgroups(real_group, "n1", memory_bytes=0)
    restarted.end_left_over()
    await eventually(lambda: not (restarted._remove_ended() or group.exists()), "the group is removed")
    group.parent.rmdir()


async def test_no_descendant_of_a_worker_leaves_its_group_or_outlives_it(real_group: Path) -> None:
    command = [sys.executable, "-c", FORKS_AWAY, str(real_group)]
    run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=True)
    assert any(line.startswith("0::") and line.endswith(real_group.name) for line in run.stdout.splitlines())
    (left,) = (real_group / "cgroup.procs").read_text().split()
    assert int(left) > 0
    groups = WorkerCgroups(real_group.parent, memory_bytes=0)
    groups.end(real_group)
    await eventually(lambda: not (groups._remove_ended() or real_group.exists()), "the group is removed")


def test_a_worker_opens_so_many_files_at_most() -> None:
    code = (
        "import resource; from elasticflow.shared.runtime.process.isolation.cgroups import limit_worker;"
        "limit_worker(counts_processes=False); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    assert run.stdout.split() == [str(most)] * 2


def test_a_process_enters_a_group_by_itself(tmp_path: Path) -> None:
    enter_group(tmp_path)
    assert (tmp_path / "cgroup.procs").read_text() == "0"
