"""Makes the folders of a job those of this job alone, and moves those of an earlier job of its id away."""

import fcntl
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elasticflow.shared.runtime.process.durable_file import write_durably
from elasticflow.shared.runtime.process.job_folders import OWNERS, owner_of

PLACES = ("checkpoints", "logs")
_LOCK = ".lock"


def take_folders(data_dir: Path, job_id: str, identity: str) -> list[Path]:
    """Make them this job's. Returns where those of another job are now. Blocking; raises OSError.

    Executors that share the data folder take turns.
    """
    if owner_of(data_dir, job_id) == identity:
        return []
    with _locked(data_dir):
        owner = owner_of(data_dir, job_id)
        moved = list(_set_aside(data_dir, job_id, owner)) if owner not in ("", identity) else []
        if owner != identity:
            write_durably(data_dir / OWNERS / job_id, identity.encode())
        return moved


def forget_owners(data_dir: Path, live_jobs: Container[str]) -> None:
    """Delete the records of ended jobs whose folders are gone. Blocking; raises OSError."""
    if not (data_dir / OWNERS).exists():
        return
    with _locked(data_dir):
        for record in (data_dir / OWNERS).iterdir():
            if record.name == _LOCK or record.name in live_jobs:
                continue
            if not any((data_dir / place / record.name).exists() for place in PLACES):
                record.unlink()


def _set_aside(data_dir: Path, job_id: str, owner: str) -> Iterator[Path]:
    """Under names that no job can have."""
    for place in PLACES:
        folder = data_dir / place / job_id
        with suppress(FileNotFoundError):
            yield folder.rename(folder.with_name(f"{job_id}.of-{owner}"))


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    folder = data_dir / OWNERS
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
