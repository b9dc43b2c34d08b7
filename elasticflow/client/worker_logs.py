"""The log files of a job's workers in the pool's data folder."""

import re
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"g(\d+)-r(\d+)\.log")


class LogReader:
    """All logs of one job; each call continues where the last one stopped. folder: None or missing means no logs."""

    def __init__(self, folder: Path | None, rank: int | None) -> None:
        self._folder, self._rank = folder, rank
        self._read_up_to: dict[Path, int] = {}

    @property
    def silent(self) -> bool:
        """Whether no line has been read so far."""
        return not any(self._read_up_to.values())

    def new_lines(self, *, to_the_end: bool) -> Iterator[str]:
        """By generation, then by rank: "g2-r0 | epoch 3 ...". to_the_end: include an unfinished last line."""
        for path in self._files():
            start = self._read_up_to.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
            read = data if to_the_end else data[: data.rfind(b"\n") + 1]
            self._read_up_to[path] = start + len(read)
            for line in read.decode(errors="replace").splitlines():
                yield f"{path.stem} | {line}"

    def _files(self) -> list[Path]:
        found: list[tuple[int, int, Path]] = []
        for path in self._folder.glob("*.log") if self._folder and self._folder.is_dir() else ():
            named = _NAME.fullmatch(path.name)
            if named and self._rank in (None, int(named[2])):
                found.append((int(named[1]), int(named[2]), path))
        return [path for _, _, path in sorted(found)]
