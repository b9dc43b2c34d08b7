"""Whose folders `checkpoints/<job_id>` and `logs/<job_id>` of a data folder are (docs/adr/0102).

A ledger may forget a job, or be restored from an older copy: then another job has the id, maybe of another tenant. The
record of the owner is in `owners/<job_id>`, where no isolated job reaches it.
"""

from pathlib import Path

OWNERS = "owners"


def are_folders_of(data_dir: Path, job_id: str, identity: str) -> bool:
    """Whether no other job owns them. identity: `Job.identity`."""
    return owner_of(data_dir, job_id) in ("", identity)


def owner_of(data_dir: Path, job_id: str) -> str:
    """The identity of the job that has taken them; "" if none has."""
    try:
        return (data_dir / OWNERS / job_id).read_text(errors="replace")
    except FileNotFoundError:
        return ""
