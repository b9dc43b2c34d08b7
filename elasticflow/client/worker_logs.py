"""The log files of a job's workers in the pool's data folder."""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from itertools import chain, islice
from pathlib import Path

from elasticflow.shared.runtime.process.file_beginning import kept_from
from elasticflow.shared.runtime.process.job_folders import are_folders_of
from elasticflow.shared.runtime.process.regular_file import NotRegularFile, open_regular_file
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

_NAME = re.compile(r"g(\d+)-r(\d+)\.log")

_PART_BYTES = 1 << 16
_BATCH = 1_000  # lines that are read at once


def last_state(line: str) -> str:
    """What a terminal would show in the end of a line that a progress bar writes again and again."""
    return line.rstrip("\r").rpartition("\r")[2]


def log_folder(data_dir: Path | None, job: Job) -> Path | None:
    """Of the job's workers; None if the data folder is elsewhere, or this job has not worked there."""
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
        """Of the workers with a log file now."""
        return {rank for _, rank, _ in self._named()}

    @property
    def silent(self) -> bool:
        """Whether no line has been read so far."""
        return not any(self._read_up_to.values())

    def new_lines(self, *, to_the_end: bool) -> Iterator[str]:
        """By generation, then by rank: "g2-r0 | epoch 3 ...". to_the_end: include an unfinished last line."""
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
        """By generation and rank."""
        found: list[tuple[int, int, Path]] = []
        for path in self._folder.glob("*.log") if self._folder and self._folder.is_dir() else ():
            named = _NAME.fullmatch(path.name)
            if named and self._rank in (None, int(named[2])):
                found.append((int(named[1]), int(named[2]), path))
        return sorted(found)


class FileLogs:
    """The lines of a `LogReader` for an event loop, as `StoredLogs` has those of the bus."""

    complete = True  # what is in the files is there at once

    def __init__(self, reader: LogReader, job_id: str, *, follow: bool) -> None:
        self._reader, self._job_id, self._follow = reader, job_id, follow

    @property
    def silent(self) -> bool:
        return self._reader.silent

    async def new_lines(self, state: PoolState) -> AsyncIterator[str]:
        """state: of the pool now. With follow, an unfinished line counts once the job has ended."""
        job = state.job(self._job_id)
        lines = self._reader.new_lines(to_the_end=not self._follow or job is None or not job.live)
        while batch := await asyncio.to_thread(lambda: list(islice(lines, _BATCH))):
            for line in batch:
                yield line
