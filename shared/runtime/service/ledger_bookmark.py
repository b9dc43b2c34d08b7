"""What a machine remembers of a ledger, beside NATS: the newest message that was read there, and whose files it has
(docs/adr/0099).

A NATS that comes back with older data, from a backup or after a loss, does not know what it has acknowledged since.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from elasticflow.shared.errors import LedgerBroken, LedgerTruncated, Retry, names_in_short
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import DEFAULT_TIMEOUT_S, Bus, with_retry
from elasticflow.shared.state.ledger_chain import digest_with
from elasticflow.shared.state.pool import PoolState

_SHOWN_JOBS = 5


class LedgerBookmark:
    """The newest message that one reader of a pool's ledger has read, in a file of this machine."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.sequence, self._digest = _read(file)

    @classmethod
    def of_reader(cls, data_dir: Path, pool: str, reader: str) -> "LedgerBookmark":
        """reader: its name, which no other reader has that shares the folder."""
        return cls(data_dir / _file_name(pool, reader))

    def move(self, record: LedgerRecord) -> None:
        """Move to the newest message that was read. Raises OSError."""
        if record.sequence == self.sequence:
            return
        digest = digest_with("", record)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.file.with_suffix(".part")
        unfinished.write_text(json.dumps({"sequence": record.sequence, "message": digest}))
        unfinished.replace(self.file)
        self.sequence, self._digest = record.sequence, digest

    async def problem(self, bus: Bus, pool: str) -> str | None:
        """Why the ledger is not the one that was read here. Raises Unavailable, UnknownStream."""
        end = await with_retry(bus.ledger_end, pool)
        if end.first <= self.sequence <= end.sequence:
            found = await _digest_at(bus, pool, self.sequence)
            if found in ("", self._digest):
                return None
            what = f"has another message {self.sequence} than the one that was read on this machine"
        elif self.sequence > end.sequence:
            what = f"ends at message {end.sequence}, but this machine has read it up to {self.sequence}"
        else:
            return None
        return (
            f"the ledger of pool {pool} {what}: NATS has older data, and jobs that it acknowledged later are gone. "
            "Stop the pool, and see 'When the ledger is older than its nodes' in docs/how-to/operate-a-pool.md. To go "
            f"on with what is there, delete {self.file}"
        )


async def older_ledger(bus: Bus, pool: str, data_dir: Path) -> str | None:
    """Why the ledger is not the one that readers with this data folder have read; None if it is.

    Raises Unavailable, UnknownStream.
    """
    files = await asyncio.to_thread(_bookmarks, data_dir, pool)
    for bookmark in sorted(map(LedgerBookmark, files), key=lambda each: -each.sequence):
        if problem := await bookmark.problem(bus, pool):
            return problem
    return None


def is_remembered(data_dir: Path, pool: str) -> bool:
    """Whether any reader with this data folder has kept a bookmark."""
    return bool(_bookmarks(data_dir, pool))


def unknown_jobs_problem(state: PoolState, data_dir: Path, with_files: Mapping[str, str]) -> str | None:
    """Why the ledger does not seem to be the one of the jobs whose files are here; None if it knows all of them.

    A data folder whose bookmarks are lost still has the files of jobs. A ledger of so many jobs that it has forgotten
    some says nothing. with_files: `jobs_with_files`, read before the state.
    """
    if state.num_forgotten:
        return None
    unknown = [
        job_id
        for job_id, identity in with_files.items()
        if (job := state.job(job_id)) is None or identity not in (job.identity, *job.earlier_identities)
    ]
    if not unknown:
        return None
    jobs, names = "a job" if len(unknown) == 1 else f"{len(unknown)} jobs", names_in_short(sorted(unknown), _SHOWN_JOBS)
    return (
        f"{data_dir} has files of {jobs} that the ledger does not know ({names}): NATS has older data, and jobs that "
        "it acknowledged later are gone; or another pool uses this folder, which needs one of its own. "
        "See 'When the ledger is older than its nodes' in docs/how-to/operate-a-pool.md"
    )


async def _digest_at(bus: Bus, pool: str, sequence: int) -> str:
    """The digest of the message; "" if it cannot be read now, which others report."""
    batches = bus.read(pool, after_sequence=sequence - 1, up_to=sequence)
    try:
        async with asyncio.timeout(DEFAULT_TIMEOUT_S), contextlib.aclosing(batches):  # pyright: ignore[reportArgumentType]
            (record,) = await anext(batches)
    except (TimeoutError, Retry, LedgerBroken, LedgerTruncated):
        return ""
    return digest_with("", record)


def _read(file: Path) -> tuple[int, str]:
    """0 and "" if there is none, or if it is damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        return int(kept["sequence"]), str(kept["message"])
    return 0, ""


def _bookmarks(data_dir: Path, pool: str) -> list[Path]:
    """The files of all readers."""
    return sorted(data_dir.glob(_file_name(pool, "*")))


def _file_name(pool: str, reader: str) -> str:
    """Relative to the data folder."""
    return f"services/ledger-{pool}.{reader}.json"
