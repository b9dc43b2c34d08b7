"""The log files of jobs on a node: rotated, read to their end, and published line by line."""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import StartWorker
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.job_environment import without_secrets
from elasticflow.shared.messages.limits import MAX_LAST_LINES
from elasticflow.shared.messages.log_chunk import (
    NEWEST,
    LogChunk,
    LogLine,
    decode_chunk,
    decode_number,
    encode_chunk,
    filled,
    slot,
)
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.files import NoHoles, free_beginning, kept_from, open_regular_file
from elasticflow.shared.runtime.process.folder_tree import are_folders_of
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

MAX_BACKLOG_BYTES = 1 << 20  # of a file; what lies further behind is passed over
MAX_LINE_BYTES = 4_000  # longer lines are cut into several
MAX_COUNTED_BYTES = 16 << 20  # of lines that are passed over; of more, the number is not known
_PART_BYTES = 1 << 20


def new_lines(
    log_file: Path,
    offset: int,
    *,
    max_bytes: int,
    max_lines: int,
    to_the_end: bool,
    max_counted_bytes: int = MAX_COUNTED_BYTES,
) -> list[LogLine]:
    """The lines from the offset on, at most so much. to_the_end: include an unfinished last line.

    If a file has grown far more, it gives the newest lines, after one that says how many are left out. What it reads
    is bounded, and holes are not read, however large the file claims to be. Raises OSError.
    """
    lines: list[LogLine] = []
    with open_regular_file(log_file) as file:
        size = os.fstat(file).st_size
        if size < offset:  # its job has cut it
            offset = 0
        kept = kept_from(file, offset)
        if kept > offset or size - offset > MAX_BACKLOG_BYTES:
            up_to = _beginning_of_line(file, max(size - max_bytes, kept + 1), max_bytes=max_bytes + 1)
            num_left_out, is_exact = _num_lines(file, kept, up_to, max_bytes=max_counted_bytes)
            number = f"{num_left_out:,}" if is_exact and kept == offset else f"more than {num_left_out:,}"
            note = f"eflow: {number} lines left out: more than the bus takes; the node has the newest in {log_file}"
            offset = up_to
            lines.append(LogLine(file=log_file.stem, text=note, up_to=offset))
        data = os.pread(file, max_bytes, offset)
        is_last = offset + len(data) >= size and to_the_end
    for part in _parts(data, include_rest=is_last):
        if len(lines) >= max_lines:
            break
        offset += len(part)
        lines.append(LogLine(file=log_file.stem, text=_text(part), up_to=offset))
    return lines


def _num_lines(file: int, offset: int, up_to: int, *, max_bytes: int) -> tuple[int, bool]:
    """The number of lines between both, without what is in holes or above the bound; and whether that is all."""
    num_lines, left_bytes, is_exact = 0, max_bytes, True
    while is_exact and offset < up_to:
        data = os.pread(file, min(_PART_BYTES, up_to - offset, left_bytes), offset)
        num_lines += data.count(b"\n")
        left_bytes -= len(data)
        offset += len(data)
        is_exact = bool(data) and kept_from(file, offset) == offset
    return max(num_lines, 1), is_exact


def _beginning_of_line(file: int, goal: int, *, max_bytes: int) -> int:
    """The first one at or behind the goal, or the end of the hole there; where the bytes that may be read end, if there
    is none."""
    start = kept_from(file, goal - 1)
    if start >= goal:
        return start
    data = os.pread(file, max_bytes, start)
    end = data.find(b"\n")
    return start + (end + 1 if end >= 0 else len(data))


def _parts(data: bytes, *, include_rest: bool) -> Iterator[bytes]:
    """Lines with their ends; pieces of those that are too long."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start, start + MAX_LINE_BYTES) + 1
        if not end:
            end = start + MAX_LINE_BYTES
            if end > len(data):
                if include_rest:
                    yield data[start:]
                return
        yield data[start:end]
        start = end


def _text(line: bytes) -> str:
    """The line as a terminal shows it at last: a progress bar overwrites itself."""
    return line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]


# --- log publisher -------------------------------------------------------------------------------------
# Copies what the workers of this node write to the bus, for users without the nodes' storage (docs/adr/0066).
#
# It reads the log files, so a worker never waits for it. What the bus takes of a job is bounded. The newest chunk on
# the bus says how far the files are read: an executor that starts again continues there.

EVERY_S, RETRY_S = 1.0, 5.0
MAX_BYTES, MAX_LINES = 256 * 1024, 2_000  # of one job each time
QUIET_TURNS = 3  # without a line, after the end of a job: its workers have ended
TURNS_AFTER_END = 60  # at most, whatever still writes
_NO_CHUNK = LogChunk()
_FILE = re.compile(r"g\d+-r\d+")


@dataclass(slots=True)
class _JobLog:
    """chunk: the newest on the bus, if is_known; after a failure, the bus may have another one. newest: the number that
    the bus has beside the ring. files: what workers write here, by generation and rank."""

    tenant: str
    identity: str
    chunk: LogChunk = _NO_CHUNK
    is_known: bool = False
    newest: int = -1
    files: set[str] = field(default_factory=set[str])
    num_quiet_turns: int = 0
    num_turns_after_end: int = 0


class LogPublisher:
    """Publishes the logs of one node."""

    def __init__(self, bus: Bus, pool: str, data_dir: Path, node_id: str, log: Any) -> None:
        self._bus, self._bucket = bus, streams.log_bucket(pool)
        self._logs, self._node_id, self._log = data_dir / "logs", node_id, log
        self._jobs: dict[str, _JobLog] = {}
        self._has_failed = False

    def follow(self, started: StartWorker) -> None:
        """Publish what this worker writes, until its job has ended."""
        worker, identity = started.worker, started.assignment.job_identity
        job = self._jobs.get(worker.job_id)
        if job is None or job.identity != identity:  # the earlier job of this id has ended, and its folder is moved
            job = self._jobs[worker.job_id] = _JobLog(started.tenant, identity)
        job.files.add(f"g{worker.generation}-r{worker.rank}")

    def resume(self, jobs: Iterable[Job]) -> None:
        """Publish, after a start, what earlier workers of these jobs have written here, as far as it is on the bus."""
        for job in jobs:
            if (self._logs / job.job_id).is_dir():
                self._jobs.setdefault(job.job_id, _JobLog(job.tenant, job.identity))

    async def run(self, folded: Callable[[], PoolState]) -> None:
        """Publish what is new until cancelled. folded: returns the state of the ledger."""
        self.resume(folded().live_jobs.values())
        while True:
            await self.publish(folded().live_jobs)
            await asyncio.sleep(RETRY_S if self._has_failed else EVERY_S)

    async def publish(self, live_jobs: Mapping[str, Job]) -> None:
        """What is new. Without NATS, nothing: the files keep it."""
        for job_id, job in list(self._jobs.items()):
            try:
                live = live_jobs.get(job_id)
                await self._publish_job(job_id, job, is_live=live is not None and live.identity == job.identity)
            except ElasticFlowError as error:
                job.is_known = False
                if not self._has_failed:
                    self._log.warning("LogsNotPublished", job_id=job_id, error=str(error))
                self._has_failed = True
                self._jobs[job_id] = self._jobs.pop(job_id)  # the others come first in the next turn
                return
            except Exception:  # jobs train on
                self._log.exception("LogNotPublished", job_id=job_id)
                self._forget(job_id, job)
        self._has_failed = False

    async def _publish_job(self, job_id: str, job: _JobLog, *, is_live: bool) -> None:
        if not job.is_known:
            await self._read_newest(job_id, job)
        lines = await asyncio.to_thread(self._new_lines, job_id, job, to_the_end=not is_live)
        for chunk in filled(job.chunk, lines) if lines else ():
            await self._store(job_id, job, chunk)
        job.num_turns_after_end += not is_live
        job.num_quiet_turns = 0 if lines or is_live else job.num_quiet_turns + 1
        is_complete = job.num_quiet_turns >= QUIET_TURNS or job.num_turns_after_end >= TURNS_AFTER_END
        if is_complete and job.chunk.text:
            await self._store(job_id, job, replace(job.chunk, complete=True))
        if job.chunk.text and job.chunk.number != job.newest:
            await self._bus.put_value(self._bucket, self._key(job_id, job, NEWEST), str(job.chunk.number).encode())
            job.newest = job.chunk.number
        if is_complete:
            self._forget(job_id, job)

    def _forget(self, job_id: str, job: _JobLog) -> None:
        """A later job may have taken the id meanwhile."""
        if self._jobs.get(job_id) is job:
            del self._jobs[job_id]

    def _new_lines(self, job_id: str, job: _JobLog, *, to_the_end: bool) -> list[LogLine]:
        """Blocking. Of all its files, each with a part of the bound."""
        known = sorted(job.files | {name for name in job.chunk.up_to if _FILE.fullmatch(name)})
        offsets = {self._logs / job_id / f"{name}.log": job.chunk.up_to.get(name, 0) for name in known}
        changed = {path: offset for path, offset in offsets.items() if _size(path) != offset}
        if changed and not are_folders_of(self._logs.parent, job_id, job.identity):  # its first worker has not started
            return []
        max_bytes = max(MAX_BYTES // max(len(changed), 1), 2 * MAX_LINE_BYTES)
        max_lines = MAX_LINES // max(len(changed), 1) + 1
        max_counted_bytes = MAX_COUNTED_BYTES // max(len(changed), 1)
        lines: list[LogLine] = []
        for path, offset in changed.items():
            with suppress(OSError):  # a link, or a disk that fails: the others count
                lines += new_lines(
                    path,
                    offset,
                    max_bytes=max_bytes,
                    max_lines=max_lines,
                    to_the_end=to_the_end,
                    max_counted_bytes=max_counted_bytes,
                )
        return lines

    async def _store(self, job_id: str, job: _JobLog, chunk: LogChunk) -> None:
        await self._bus.put_value(self._bucket, self._key(job_id, job, slot(chunk.number)), encode_chunk(chunk))
        job.chunk = chunk

    async def _read_newest(self, job_id: str, job: _JobLog) -> None:
        """Find where an earlier executor of this node or a failed turn has stopped: maybe behind the stored number."""
        newest = await self._bus.get_value(self._bucket, self._key(job_id, job, NEWEST))
        chunk = job.chunk
        try:
            number = chunk.number if newest is None else max(decode_number(newest.data), chunk.number)
            if number > chunk.number:
                chunk = LogChunk(number=number)  # if the bus has dropped it
            while (stored := await self._bus.get_value(self._bucket, self._key(job_id, job, slot(number)))) is not None:
                found = decode_chunk(stored.data)
                if found.number < number:
                    break
                chunk, number = found, found.number + 1
        except Undecodable as error:
            self._log.error("LogUnreadable", job_id=job_id, error=str(error))
        job.chunk, job.is_known = replace(chunk, complete=False), True

    def _key(self, job_id: str, job: _JobLog, name: str) -> str:
        return streams.log_key(job.tenant, self._node_id, streams.log_owner(job_id, job.identity), name)


def _size(file: Path) -> int:
    """0 if it is not written so far."""
    try:
        return file.lstat().st_size
    except OSError:
        return 0


# --- The last lines of a worker's log file, for the event that reports its failure ---------------------

MAX_TAIL_BYTES = 4_000
_LONGEST_SECRET_BYTES = 64 << 10  # as it is quoted; one that began before the last MAX_BYTES is read whole
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[@-_])")  # colors, and movements of the cursor


def last_lines(log_file: Path, secrets: Iterable[str] = ()) -> str:
    """The last lines, at most MAX_LAST_LINES, of printable text, without these values of secrets; "" without a file.

    A worker can put a link or a pipe in place of its log file: neither is read.
    """
    try:
        with open_regular_file(log_file) as file:
            most = MAX_TAIL_BYTES + _LONGEST_SECRET_BYTES
            read = os.pread(file, most, max(os.fstat(file).st_size - most, 0))
    except OSError:
        return ""
    known = without_secrets(read.decode(errors="replace"), secrets).encode()
    lines = known[-MAX_TAIL_BYTES:].decode(errors="replace").split("\n")
    if len(known) > MAX_TAIL_BYTES and len(lines) > 2:
        del lines[0]  # its beginning is missing
    shown = [_printable(line) for line in lines]
    return "\n".join([line for line in shown if line][-MAX_LAST_LINES:])


def _printable(line: str) -> str:
    """What a terminal would show at last: a progress bar overwrites itself."""
    last = _ESCAPES.sub("", line).rstrip().rpartition("\r")[2]
    return "".join(char if char.isprintable() or char == "\t" else "?" for char in last).rstrip()


# --- log rotation --------------------------------------------------------------------------------------
# Keeps the log files of processes bounded while processes of any number write to them (docs/adr/0073).
#
# The oldest output of a file becomes a hole. So no line is lost or moved while writers append, and readers go on from
# where they were (`log_publisher`, `eflow logs`).

MAX_LOG_BYTES = 16 * 1024 * 1024  # of a process
MAX_FOLDER_BYTES = 256 * 1024 * 1024  # of all processes that a job or load has had here
_MAX_FILES = 10_000  # that are looked at
_POLL_S = 0.5


@contextlib.asynccontextmanager
async def bounded(log_file: Path) -> AsyncIterator[None]:
    """Keep the newest MAX_LOG_BYTES of the file meanwhile, and at the end.

    It may exceed the limit by the output of _POLL_S. Logs of earlier processes beside it lose their lines, the oldest
    ones first, when the folder has MAX_FOLDER_BYTES.
    """
    keeping = asyncio.create_task(_keep_bounded(log_file), name=f"log {log_file.name}")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await asyncio.to_thread(rotate, log_file)


async def _keep_bounded(log_file: Path) -> None:
    await asyncio.to_thread(shorten_oldest, log_file.parent)
    while True:
        await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(rotate, log_file)


def rotate(log_file: Path, *, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Once, if the file has more than this. Errors of the disk leave it as it is.

    Users' code can write the folder: no link in it leads to another file (SECURITY.md).
    """
    with contextlib.suppress(OSError), open_regular_file(log_file, os.O_RDWR) as log:
        num_bytes = os.fstat(log).st_size
        if num_bytes - kept_from(log, 0) <= max_bytes:
            return
        try:
            free_beginning(log, num_bytes - max_bytes)
        except NoHoles:
            _empty(log, log_file, max_bytes)


def shorten_oldest(folder: Path, *, max_bytes: int = MAX_FOLDER_BYTES) -> None:
    """Logs of a folder, from the one that was written to least recently, until all have at most so much."""
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:  # the job may have made millions
            of_logs = (entry for entry in entries if ".log" in entry.name)
            logs = [(entry.stat(follow_symlinks=False), entry.name) for entry in islice(of_logs, _MAX_FILES)]
        excess = sum(status.st_blocks * 512 for status, _ in logs) - max_bytes
        for status, name in sorted(logs, key=lambda log: log[0].st_mtime_ns):
            if excess <= 0:
                return
            rotate(folder / name, max_bytes=0)
            excess -= status.st_blocks * 512


def _empty(log: int, log_file: Path, max_bytes: int) -> None:
    """Empty the log where it cannot have holes; keep its end in `<log_file>.1`.

    Lines that are written during the copy are lost; a full disk loses the copy, not the bound.
    """
    start = os.fstat(log).st_size - max_bytes
    if max_bytes:
        with contextlib.suppress(OSError):
            _replace(log_file.with_name(f"{log_file.name}.1"), os.pread(log, max_bytes, start))
    os.ftruncate(log, 0)


def _replace(file: Path, data: bytes) -> None:
    """Replace the file, also a link of this name. Raises OSError, and leaves no part."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        created = open_regular_file(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with created as copy, os.fdopen(copy, "wb", closefd=False) as output:
            output.write(data)
        unfinished.rename(file)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
