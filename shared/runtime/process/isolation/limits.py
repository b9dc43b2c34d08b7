"""What a worker may use of its machine, and that no program which it starts gains rights."""

import resource
from contextlib import suppress
from pathlib import Path

from elasticflow.shared.runtime.process.isolation.system_calls import forbid_new_rights

MAX_PROCESSES = 1024  # and threads, of one worker with its descendants
MAX_OPEN_FILES = 16_384  # of each process of a worker; the kernel's own tables are the machine's
_FIRST_TO_KILL = "1000"  # of all processes, if the machine is out of memory


def limit_worker(*, counts_processes: bool) -> None:
    """For this process and its descendants. counts_processes: only its own count, as in its own user namespace."""
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
