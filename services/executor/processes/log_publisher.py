"""Copies what the workers of this node write to the bus, for users without the nodes' storage (docs/adr/0066).

It reads the log files, so a worker never waits for it. What the bus takes of a job is bounded. The newest chunk on the
bus says how far the files are read: an executor that starts again continues there.
"""

import asyncio
import re
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import StartWorker
from elasticflow.services.executor.processes.new_lines import MAX_COUNTED_BYTES, MAX_LINE_BYTES, new_lines
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages.envelope.codec import Undecodable
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
from elasticflow.shared.runtime.process.job_folders import are_folders_of
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

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
    """Of one node."""

    def __init__(self, bus: Bus, pool: str, data_dir: Path, node_id: str, log: Any) -> None:
        self._bus, self._bucket = bus, streams.log_bucket(pool)
        self._logs, self._node_id, self._log = data_dir / "logs", node_id, log
        self._jobs: dict[str, _JobLog] = {}
        self._has_failed = False

    def follow(self, started: StartWorker) -> None:
        """Publish what this worker writes, until its job has ended."""
        worker = started.worker
        job = self._jobs.setdefault(worker.job_id, _JobLog(started.tenant, started.assignment.checkpoint_owner))
        job.files.add(f"g{worker.generation}-r{worker.rank}")

    def resume(self, jobs: Iterable[Job]) -> None:
        """After a start: publish what earlier workers of these jobs have written here, as far as it is on the bus."""
        for job in jobs:
            if (self._logs / job.job_id).is_dir():
                self._jobs.setdefault(job.job_id, _JobLog(job.tenant, job.identity))

    async def run(self, folded: Callable[[], PoolState]) -> None:
        """Until cancelled. folded: returns the state of the ledger."""
        self.resume(folded().live_jobs.values())
        while True:
            await self.publish(folded().live_jobs)
            await asyncio.sleep(RETRY_S if self._has_failed else EVERY_S)

    async def publish(self, live_jobs: Container[str]) -> None:
        """What is new. Without NATS, nothing: the files keep it."""
        for job_id, job in list(self._jobs.items()):
            try:
                await self._publish_job(job_id, job, is_live=job_id in live_jobs)
            except ElasticFlowError as error:
                job.is_known = False
                if not self._has_failed:
                    self._log.warning("LogsNotPublished", job_id=job_id, error=str(error))
                self._has_failed = True
                self._jobs[job_id] = self._jobs.pop(job_id)  # the others come first in the next turn
                return
            except Exception:  # jobs train on
                self._log.exception("LogNotPublished", job_id=job_id)
                del self._jobs[job_id]
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
        """Where an earlier executor of this node, or a failed turn, has stopped: maybe behind the stored number."""
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
        return streams.log_key(job.tenant, self._node_id, job_id, name)


def _size(file: Path) -> int:
    """0 if it is not written so far."""
    try:
        return file.lstat().st_size
    except OSError:
        return 0
