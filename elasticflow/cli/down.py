"""`eflow down`."""

import contextlib
import os
import signal
import time
from pathlib import Path

from elasticflow.cli.command_options import DataDir, Json
from elasticflow.cli.terminal_output import note, print_json, say_line
from elasticflow.local.run_file import DATA_DIR, find_run_file, holder_of, read_run_file
from elasticflow.shared.extras import require_extra
from elasticflow.shared.runtime.process.process_termination import kill_process_group

_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.1


def down(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Stop the pool that runs in this folder, in order; jobs go on with the next
    `eflow up`.

    \b
    Examples:
      eflow down
      eflow down --data-dir /var/lib/eflow
    """
    if data_dir is None:
        run = find_run_file(Path.cwd())
        data_dir = Path(run.data_dir) if run is not None else Path(DATA_DIR)
    pid = holder_of(data_dir)
    if pid is not None:
        _stop(data_dir, pid)
    if as_json:
        print_json({"stopped": pid is not None, "data_dir": str(data_dir)})
    else:
        say_line(f"stopped the pool in {data_dir}" if pid is not None else f"nothing runs in {data_dir}")


def _stop(data_dir: Path, pid: int) -> None:
    """Ask the supervisor; if it does not end, kill it and every process group that it had started."""
    require_extra("server", "eflow down")
    run = read_run_file(data_dir)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if _gone_within(data_dir, pid, _STOP_TIMEOUT_S):
        return
    note(f"process {pid} does not stop; killing it and what it started")
    children = [process.pid for process in run.processes.values()] if run is not None else []
    for target in (pid, *children):
        kill_process_group(target)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(target, signal.SIGKILL)
    _gone_within(data_dir, pid, _STOP_TIMEOUT_S)


def _gone_within(data_dir: Path, pid: int, timeout_s: float) -> bool:
    """The folder is free again, and so is the process id."""
    give_up_at = time.monotonic() + timeout_s
    while holder_of(data_dir) is not None or _runs(pid):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(_POLL_S)
    return True


def _runs(pid: int) -> bool:
    import psutil  # here: only a machine that runs pools has it

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
