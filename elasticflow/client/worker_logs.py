"""What a job's workers have written: their files in the pool's data folder, or what the bus has of them."""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from elasticflow.shared.errors import UnknownStream
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.log_chunk import NEWEST, NUM_SLOTS, LogChunk, decode_chunk, decode_number, slot
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus, with_retry
from elasticflow.shared.runtime.process.files import NotRegularFile, kept_from, open_regular_file
from elasticflow.shared.runtime.process.folder_tree import are_folders_of
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

_NAME = re.compile(r"g(\d+)-r(\d+)\.log")

_PART_BYTES = 1 << 16
_BATCH = 1_000  # lines that are read at once


def last_state(line: str) -> str:
    """What a terminal would show in the end of a line that a progress bar writes again and again."""
    return line.rstrip("\r").rpartition("\r")[2]


def log_folder(data_dir: Path | None, job: Job) -> Path | None:
    """The folder of the workers' logs; None if the data folder is elsewhere, or this job has not worked there."""
    if data_dir is None or not are_folders_of(data_dir, job.job_id, job.identity):
        return None
    return data_dir / "logs" / job.job_id


class LogReader:
    """All logs of one job; each call continues where the last one stopped. folder: None or missing means no logs.

    The job can write the folder: links and FIFOs in it are passed over.
    """

    def __init__(self, folder: Path | None, rank: int | None) -> None:
        self._folder, self._rank = folder, rank
        self._read_up_to: dict[Path, int] = {}

    @property
    def has_files(self) -> bool:
        """Whether there is a log file now."""
        return bool(self._files())

    @property
    def ranks(self) -> set[int]:
        """The ranks of the workers with a log file now."""
        return {rank for _, rank, _ in self._named()}

    @property
    def silent(self) -> bool:
        """Whether no line has been read so far."""
        return not any(self._read_up_to.values())

    def new_lines(self, *, to_the_end: bool) -> Iterator[str]:
        """New lines by generation, then by rank: "g2-r0 | epoch 3 ...". to_the_end: include an unfinished last line."""
        for path in self._files():
            moved = path.with_name(f"{path.name}.1")  # its beginning, on filesystems without holes (docs/adr/0073)
            lines = chain(
                () if path in self._read_up_to else self._lines_of(moved, to_the_end=True),
                self._lines_of(path, to_the_end=to_the_end),
            )
            for line in lines:
                yield f"{path.stem} | {line}"

    def _lines_of(self, path: Path, *, to_the_end: bool) -> Iterator[str]:
        with contextlib.suppress(NotRegularFile, FileNotFoundError), open_regular_file(path) as file:
            for part in self._new_parts(path, file, to_the_end=to_the_end):
                if part:
                    yield from map(last_state, part.decode(errors="replace").removesuffix("\n").split("\n"))

    def _new_parts(self, path: Path, file: int, *, to_the_end: bool) -> Iterator[bytes]:
        """Whole lines; parts of those that are longer than _PART_BYTES, so that no file fills the memory.

        Where the node has freed the beginning of the file, from the first line behind it on, after one that says so.
        """
        is_last = False
        if os.fstat(file).st_size < self._read_up_to.get(path, 0):  # it was emptied
            self._read_up_to[path] = 0
        while not is_last:
            start = self._read_up_to.get(path, 0)
            kept = kept_from(file, start)
            data = os.pread(file, _PART_BYTES, kept)
            if kept_from(file, kept) > kept:
                continue  # freed since
            is_last = len(data) < _PART_BYTES
            ends_at = len(data) if is_last and to_the_end else data.rfind(b"\n") + 1
            begins_at = data.find(b"\n") + 1 if kept > start else 0
            read = data[:ends_at] if ends_at or is_last else data
            self._read_up_to[path] = kept + len(read)
            if kept > start:
                num_bytes = kept + begins_at - start
                yield f"eflow: {num_bytes:,} bytes of older lines left out: their node freed them\n".encode()
            yield read[begins_at:]

    def _files(self) -> list[Path]:
        return [path for _, _, path in self._named()]

    def _named(self) -> list[tuple[int, int, Path]]:
        """The files, sorted by generation and rank."""
        found: list[tuple[int, int, Path]] = []
        for path in self._folder.glob("*.log") if self._folder and self._folder.is_dir() else ():
            named = _NAME.fullmatch(path.name)
            if named and self._rank in (None, int(named[2])):
                found.append((int(named[1]), int(named[2]), path))
        return sorted(found)


class FileLogs:
    """The lines of a `LogReader` for an event loop, as `StoredLogs` has those of the bus."""

    complete = True  # what is in the files is there at once

    def __init__(self, reader: LogReader, job: Job, *, follow: bool) -> None:
        self._reader, self._job, self._follow = reader, job, follow

    @property
    def silent(self) -> bool:
        return self._reader.silent

    async def new_lines(self, state: PoolState) -> AsyncIterator[str]:
        """state: of the pool now. With follow, an unfinished line counts once the job has ended.

        None if a later job has its id: the files may be that one's.
        """
        if state.has_later_job(self._job):
            return
        job = state.job(self._job.job_id)
        lines = self._reader.new_lines(to_the_end=not self._follow or job is None or not job.live)
        while batch := await asyncio.to_thread(lambda: list(islice(lines, _BATCH))):
            for line in batch:
                yield line


# --- stored logs ---------------------------------------------------------------------------------------
# What a job's workers have written, from the bus: no storage is shared with the nodes (docs/adr/0066).

_AT_ONCE = 32  # nodes that are asked for the job


@dataclass(slots=True)
class _Place:
    """The reader's position in the chunks of one node. length: of the text that is read of this chunk."""

    number: int
    newest: int
    length: int = 0
    complete: bool = False


class StoredLogs:
    """The stored logs of one job; each call continues where the last one stopped. rank: None for all workers."""

    def __init__(self, bus: Bus, pool: str, job: Job, rank: int | None) -> None:
        self._bus, self._bucket = bus, streams.log_bucket(pool)
        self._job, self._rank = job, rank
        self._places: dict[str, _Place] = {}
        self._node_ids: set[str] = set()  # that have run the job since the first call
        self._has_asked_all = self._has_asked_at_end = False  # all nodes of the pool

    @property
    def silent(self) -> bool:
        """Whether no node has published a line so far."""
        return not self._places

    @property
    def complete(self) -> bool:
        """Whether the job has ended, and its nodes publish no other lines."""
        if not self._places:
            return not self._job.live and self._job.generation == self._job.void_generation
        return all(place.complete for place in self._places.values())

    async def new_lines(self, state: PoolState) -> AsyncIterator[str]:
        """New lines by node: "g2-r0 | epoch 3 ...". state: of the pool now. Raises NotPermitted, Unavailable."""
        if not state.has_later_job(self._job):
            self._job = state.job(self._job.job_id) or self._job
        self._node_ids |= {*self._job.nodes}
        node_ids = set(self._node_ids)
        if not self._has_asked_all or (not self._job.live and not self._has_asked_at_end):
            node_ids.update(state.nodes)
        self._has_asked_all, self._has_asked_at_end = True, not self._job.live
        await self._find(sorted(node_ids - self._places.keys()))
        for node_id, place in self._places.items():
            async for text in self._new_texts(node_id, place):
                for line in text.split("\n")[:-1]:
                    worker, of_a_worker, said = line.partition(" | ")
                    if self._rank is None or not of_a_worker or worker.endswith(f"-r{self._rank}"):
                        yield f"{worker}{of_a_worker}{last_state(said)}"

    async def _find(self, node_ids: list[str]) -> None:
        for start in range(0, len(node_ids), _AT_ONCE):
            some = node_ids[start : start + _AT_ONCE]
            found = await asyncio.gather(*(self._newest(node_id) for node_id in some))
            for node_id, newest in zip(some, found, strict=True):
                if newest is not None:
                    self._places[node_id] = _Place(number=_oldest(newest), newest=newest)

    async def _new_texts(self, node_id: str, place: _Place) -> AsyncIterator[str]:
        """The newest chunk grows; once there is a next one, it does not."""
        while True:
            following = await self._chunk(node_id, place.number + 1)
            chunk = await self._chunk(node_id, place.number)
            if chunk is not None and chunk.number > place.number:
                yield f"eflow: lines of {node_id} left out: the job has written others in their place since\n"
                place.newest = max(await self._newest(node_id) or 0, chunk.number)
                place.number, place.length = _oldest(place.newest), 0
                continue
            if chunk is not None and chunk.number == place.number:
                yield chunk.text[place.length :]
                place.length, place.complete = len(chunk.text), chunk.complete
            if place.number >= place.newest and (following is None or following.number <= place.number):
                return
            place.number, place.length = place.number + 1, 0

    async def _newest(self, node_id: str) -> int | None:
        """The number of the node's newest chunk; None if it has published no line of the job."""
        data = await self._read(node_id, NEWEST)
        with suppress(Undecodable):
            return None if data is None else decode_number(data)
        return None

    async def _chunk(self, node_id: str, number: int) -> LogChunk | None:
        """What is in its slot."""
        data = await self._read(node_id, slot(number))
        with suppress(Undecodable):
            return None if data is None else decode_chunk(data)
        return None

    async def _read(self, node_id: str, name: str) -> bytes | None:
        owner = streams.log_owner(self._job.job_id, self._job.identity)
        key = streams.log_key(self._job.tenant, node_id, owner, name)
        try:
            value = await with_retry(self._bus.get_value, self._bucket, key)
        except UnknownStream:  # of a pool that an older version made
            return None
        return None if value is None else value.data


def _oldest(newest: int) -> int:
    """The number of the oldest chunk in the ring with this newest one."""
    return max(newest - NUM_SLOTS + 1, 0)
