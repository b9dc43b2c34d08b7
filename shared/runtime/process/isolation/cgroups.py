"""Control groups of workers: what one may use of memory and processes, together with all its descendants.

Only where the machine has cgroup v2 and this user may write a group of it, as systemd and containers delegate one
(docs/adr/0077). A worker enters its own group before it runs users' code, so that no descendant escapes.
"""

import itertools
import os
from contextlib import suppress
from pathlib import Path

from elasticflow.shared.runtime.process.isolation.limits import MAX_PROCESSES

_CONTROLLERS = ("memory", "pids")
_OWN_LEAF = "executor"  # a group with limited children may have no processes of its own


class WorkerCgroups:
    """The groups of one node's workers, in a folder of their own.

    memory_bytes: of each; 0: no limit. Blocking, for microseconds; methods raise OSError if the machine refuses.
    """

    def __init__(self, folder: Path, *, memory_bytes: int) -> None:
        self._folder, self._memory_bytes = folder, memory_bytes
        self._numbers = itertools.count()
        self._ended = {folder / name for name in os.listdir(folder) if name.startswith("worker-")}
        for left_over in self._ended:  # of an executor that was killed
            _kill_all(left_over)

    def add(self) -> Path:
        """A group for the next worker."""
        self._remove_ended()
        group = self._folder / f"worker-{os.getpid()}-{next(self._numbers)}"
        group.mkdir()
        (group / "pids.max").write_text(str(MAX_PROCESSES))
        if self._memory_bytes:
            (group / "memory.max").write_text(str(self._memory_bytes))
            (group / "memory.oom.group").write_text("1")  # a worker without its threads and children trains no more
            with suppress(OSError):  # a kernel without swap has no such file
                (group / "memory.swap.max").write_text("0")
        return group

    def end(self, group: Path) -> None:
        """The worker has ended: kill what it has left, and remove its group, now or with a later one."""
        _kill_all(group)
        self._ended.add(group)
        self._remove_ended()

    def _remove_ended(self) -> None:
        for group in list(self._ended):
            with suppress(OSError):  # the kernel has not reaped all of it so far
                group.rmdir()
                self._ended.discard(group)


def open_cgroups(folder: Path | None, node_id: str, *, memory_bytes: int) -> WorkerCgroups:
    """folder: where groups may be made; None: in that of this process, which then moves into a leaf of it.

    Raises OSError with what is missing.
    """
    parent = _own_group() if folder is None else folder
    found = (parent / "cgroup.controllers").read_text().split()
    if missing := [name for name in _CONTROLLERS if name not in found]:
        raise OSError(f"{parent} has no controllers {', '.join(missing)}: delegate them")
    if folder is None:
        leaf = parent / _OWN_LEAF
        leaf.mkdir(exist_ok=True)
        enter_group(leaf)
    try:
        of_node = parent / f"workers-{node_id}"
        for group in (parent, of_node):
            group.mkdir(exist_ok=True)
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    except OSError:  # other processes are in the same group
        if folder is None:
            enter_group(parent)
        raise
    return WorkerCgroups(of_node, memory_bytes=memory_bytes)


def enter_group(group: Path) -> None:
    """This process, and what it forks from now on."""
    (group / "cgroup.procs").write_text("0")


def _own_group() -> Path:
    """Raises OSError if this process has none of cgroup v2."""
    of_process = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.removeprefix("0::") for line in of_process if line.startswith("0::")), None)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted, _, kind = line.partition(" - ")
        if own is not None and kind.startswith("cgroup2 "):
            root, mount_point = mounted.split()[3:5]
            return Path(mount_point) / os.path.relpath(own, root)
    raise OSError("no cgroup v2 is mounted")


def _kill_all(group: Path) -> None:
    with suppress(OSError):  # a kernel before 5.14 has no such file
        (group / "cgroup.kill").write_text("1")
