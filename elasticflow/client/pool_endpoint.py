"""The pool of a command: named by the user, from the environment, or the one that runs in this folder."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from elasticflow.errors import NoPoolHere
from elasticflow.shared.errors import CannotStart
from elasticflow.shared.runtime.process.variables import check_names

# --- run file ------------------------------------------------------------------------------------------
# The run file, by which `eflow up` tells other commands the pool's NATS URL and processes. Only its owner reads it.
#
# <data_dir>/run.json   URL with token, pool, processes; exists while the pool runs
# <data_dir>/up.lock    locked by the supervisor while it lives: the run file of a crashed supervisor is ignored

DATA_DIR = ".eflow"
_RUN_FILE = "run.json"
_LOCK_FILE = "up.lock"
_TRIES = 5
_TRY_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    """One process of a pool. metrics_port: of its /metrics and /healthz, None if it has none."""

    pid: int
    metrics_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A running pool. healthy: every process has been healthy at least once.

    num_cpu_slots: of this machine's nodes; 0: they have GPUs. cores_per_cpu_slot: that a worker may use; 1 or more: no
    limit.
    """

    pid: int  # of the supervisor
    nats_url: str  # with its token
    pool: str
    data_dir: str
    started_at_s: float
    healthy: bool = False
    num_cpu_slots: int = 0
    cores_per_cpu_slot: float = 0.0
    processes: Mapping[str, RunningProcess] = field(default_factory=dict[str, RunningProcess])

    def write(self) -> None:
        """Replace the file atomically: a reader sees the old one or the new one."""
        path = Path(self.data_dir) / _RUN_FILE
        fresh = path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(self), file, indent=2)
        fresh.replace(path)


_ADAPTER = TypeAdapter(RunFile)


def read_run_file(data_dir: Path) -> RunFile | None:
    """The pool that runs in this folder, None if there is none."""
    if holder_of(data_dir) is None:
        return None
    try:
        return _ADAPTER.validate_json((data_dir / _RUN_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def remove_run_file(data_dir: Path) -> None:
    (data_dir / _RUN_FILE).unlink(missing_ok=True)


def find_run_file(start: Path) -> RunFile | None:
    """The nearest running pool: in start/.eflow or in .eflow of a folder above."""
    for folder in (start, *start.parents):
        run = read_run_file(folder / DATA_DIR)
        if run is not None:
            return run
    return None


def take(data_dir: Path) -> int:
    """Lock this folder for this supervisor. Returns the lock's descriptor. Raises CannotStart."""
    import fcntl  # here and below: Windows has no fcntl, and runs no pool

    make_folder(data_dir)
    lock = os.open(data_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    for tries_left in reversed(range(_TRIES)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if tries_left:  # another process may only be checking the lock
                time.sleep(_TRY_AGAIN_S)
                continue
            pid = _pid_in(lock)
            os.close(lock)
            raise already_running(data_dir, pid) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def already_running(data_dir: Path, pid: int) -> CannotStart:
    return CannotStart(
        "already_running",
        f"process {pid} already runs a pool in {data_dir}; use it, stop it with "
        f"`eflow down --data-dir {data_dir}`, or choose another --data-dir",
    )


def make_folder(data_dir: Path) -> Path:
    """Create the folder of the services' logs, which proves that it is writable. Raises CannotStart."""
    logs = data_dir / "services"
    if str(data_dir) != os.fsencode(data_dir).decode(errors="replace"):
        raise unusable_folder(ascii(str(data_dir)), "its name is not UTF-8, which messages need")
    try:
        logs.mkdir(parents=True, exist_ok=True)
        (data_dir / _LOCK_FILE).touch(mode=0o600)
    except OSError as error:
        raise unusable_folder(str(data_dir), f"{error.filename}: {error.strerror}") from None
    return logs


def unusable_folder(data_dir: str, reason: str) -> CannotStart:
    return CannotStart(
        "unusable_folder", f"cannot keep a pool in {data_dir}: {reason}; correct that, or choose another --data-dir"
    )


def holder_of(data_dir: Path) -> int | None:
    """The process that supervises this folder, None if there is none."""
    try:
        lock = os.open(data_dir / _LOCK_FILE, os.O_RDWR)
    except OSError:
        return None
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(lock)
    else:
        return None
    finally:
        os.close(lock)


def _pid_in(lock: int) -> int:
    return int(os.pread(lock, 20, 0).decode().strip() or 0)


# --- pool endpoint -------------------------------------------------------------------------------------

DEFAULT_POOL = "default"
DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """data_dir: folder of the pool's worker logs and checkpoints on this machine, None if unknown."""

    nats_url: str
    pool: str
    data_dir: Path | None = None


def find_endpoint(
    *,
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Endpoint:
    """nats_url, else NATS_URL, else the pool that runs in data_dir, else that of the nearest `.eflow` upwards.

    Raises NoPoolHere, and BadSettings for a variable that is nearly one of ours.
    """
    environment = os.environ if environment is None else environment
    check_names(environment)
    start = start or Path.cwd()
    if data_dir is None and environment.get("EF_DATA_DIR"):
        data_dir = Path(environment["EF_DATA_DIR"])
    pool = pool or environment.get("EF_POOL", "")
    nats_url = nats_url or environment.get("NATS_URL", "")
    run = read_run_file(data_dir) if data_dir is not None else find_run_file(start)
    if nats_url:
        return Endpoint(nats_url=nats_url, pool=pool or DEFAULT_POOL, data_dir=data_dir or _data_dir_of(run, nats_url))
    if run is None:
        raise NoPoolHere(looked_in=str(data_dir or start), is_named=data_dir is not None)
    return Endpoint(nats_url=run.nats_url, pool=pool or run.pool, data_dir=Path(run.data_dir))


def _data_dir_of(run: RunFile | None, nats_url: str) -> Path | None:
    return Path(run.data_dir) if run is not None and run.nats_url == nats_url else None
