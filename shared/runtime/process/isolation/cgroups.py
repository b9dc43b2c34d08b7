"""Control groups of workers: what one may use of memory and processes, together with all its descendants, which end
with it.

Only where the machine has cgroup v2 and this user may write a group of it, as systemd and containers delegate one
(docs/adr/0077). A worker enters its own group before it runs users' code, so that no descendant escapes. Groups without
controllers limit nothing, and still end what a worker has started (docs/adr/0101).
"""

import itertools
import os
import resource
import subprocess
from contextlib import suppress
from pathlib import Path

from elasticflow.shared.runtime.process.isolation.system_calls import forbid_new_rights

# --- limits --------------------------------------------------------------------------------------------
# What a worker may use of its machine, and that no program which it starts gains rights.

MAX_PROCESSES = 1024  # and threads, of one worker with its descendants
MAX_OPEN_FILES = 16_384  # of each process of a worker; the kernel's own tables are the machine's
_FIRST_TO_KILL = "1000"  # of all processes, if the machine is out of memory


def limit_worker(*, counts_processes: bool) -> None:
    """Limit this process and its descendants. counts_processes: only its own count, as in its own user namespace."""
    forbid_new_rights()
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    if counts_processes:
        _lower(resource.RLIMIT_NPROC, MAX_PROCESSES)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_KILL)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (lowest, lowest))


# --- cgroups -------------------------------------------------------------------------------------------

_CONTROLLERS = ("memory", "pids")
_OWN_LEAF = "executor"  # a group with limited children may have no processes of its own
_ENTER = 'echo 0 > "$0/cgroup.procs"'  # as a worker does


class WorkerCgroups:
    """The groups of one node's workers, in a folder of their own.

    memory_bytes: of each; 0: no limit. unlimited: why the groups limit nothing; "" if they do. Blocking, for
    microseconds; methods raise OSError if the machine refuses.
    """

    def __init__(self, folder: Path, *, memory_bytes: int, unlimited: str = "") -> None:
        self._folder, self._memory_bytes, self.unlimited = folder, memory_bytes, unlimited
        self._numbers = itertools.count()
        self._ended = set[Path]()

    def end_left_over(self) -> None:
        """End the groups of an executor that was killed. Call it once no other executor can have this folder."""
        for name in os.listdir(self._folder):
            if name.startswith("worker-"):
                self.end(self._folder / name)

    def add(self) -> Path:
        """A group for the next worker."""
        self._remove_ended()
        group = self._folder / f"worker-{os.getpid()}-{next(self._numbers)}"
        group.mkdir()
        if self.unlimited:
            return group
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


def open_cgroups(folder: Path | None, node: str, *, memory_bytes: int) -> WorkerCgroups:
    """folder: where groups may be made; None: in that of this process. node: its name, which no other node has there.

    Raises OSError with what is missing, if processes cannot enter new groups.
    """
    parent = _own_group() if folder is None else folder
    controllers = (parent / "cgroup.controllers").read_text().split()
    of_node = parent / f"workers-{node}"
    of_node.mkdir(exist_ok=True)
    if missing := [name for name in _CONTROLLERS if name not in controllers]:
        unlimited = f"{parent} has no controllers {', '.join(missing)}: delegate them"
    else:
        unlimited = _limits_problem(parent, of_node, moves=folder is None)
    _try_to_enter(of_node / "trial")
    return WorkerCgroups(of_node, memory_bytes=memory_bytes, unlimited=unlimited)


def _limits_problem(parent: Path, of_node: Path, *, moves: bool) -> str:
    """Why groups of this node cannot have limits; "" if they can. moves: this process into a leaf of the parent."""
    try:
        if moves:
            leaf = parent / _OWN_LEAF
            leaf.mkdir(exist_ok=True)
            enter_group(leaf)
        for group in (parent, of_node):
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    except OSError as error:  # other processes are in the same group
        if moves:
            enter_group(parent)
        return str(error)
    return ""


def _try_to_enter(group: Path) -> None:
    """Raises OSError if a child of this process cannot."""
    group.mkdir(exist_ok=True)
    tried = subprocess.run(["sh", "-c", _ENTER, str(group)], capture_output=True, text=True, check=False)
    with suppress(OSError):
        group.rmdir()
    if tried.returncode:
        raise OSError(f"no process can enter {group}: {tried.stderr.strip()}")


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
