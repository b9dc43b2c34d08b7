"""Checkpoints of one job: whole or not at all, newest generation first, readable at any number of workers.

A file's name holds generation, iteration and the SHA-256 of its content. It appears under that name only
when it is complete and on the disk; a file that does not match its name is no checkpoint. A worker of an older
generation can neither overwrite nor outrank what a newer one has written: generations come first.
"""

import hashlib
import io
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import structlog
import torch

from shared.errors import Stop

log = structlog.get_logger()

_KEEP = 2  # should the newest be damaged later, there is one before it
_ALWAYS_READABLE = (type(None), bool, int, float, str)
_NAME = re.compile(r"g(\d{10})-i(\d{14})-([0-9a-f]{64})\.ckpt")


@dataclass(eq=False)
class Superseded(Stop):
    """A newer generation has written here: this worker is a leftover."""

    generation: int
    newer: int

    SENTENCE: ClassVar[str] = "generation {generation} is over: generation {newer} has written a checkpoint"


class Written(NamedTuple):
    """One checkpoint on the disk."""

    file: Path
    num_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class _Entry:
    generation: int
    iteration: int
    digest: str

    @property
    def file_name(self) -> str:
        return f"g{self.generation:010d}-i{self.iteration:014d}-{self.digest}.ckpt"


class CheckpointStore:
    """The checkpoints in one folder, as one generation of the job sees them. Only rank 0 has one."""

    def __init__(
        self,
        folder: Path,
        *,
        generation: int,
        write: Callable[[Path, bytes], None] | None = None,
    ) -> None:
        self._folder = folder
        self._generation = generation
        self._write = write or write_durably

    def save(self, iteration: int, state: Mapping[str, Any]) -> Written:
        """Raises Superseded, or OSError if the disk does not take it; then the older ones are still there."""
        self._refuse_if_superseded()
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        content = buffer.getvalue()
        entry = _Entry(self._generation, iteration, hashlib.sha256(content).hexdigest())
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / entry.file_name
        self._write(file, content)
        self._remove_outdated()
        return Written(file, len(content))

    def newest(self, *, at_least: int = 0) -> bytes | None:
        """Content of the newest whole checkpoint, not before iteration at_least. Raises Superseded."""
        self._refuse_if_superseded()
        for entry in self._entries():
            if entry.iteration < at_least:
                continue
            content = (self._folder / entry.file_name).read_bytes()
            if hashlib.sha256(content).hexdigest() == entry.digest:
                return content
            log.warning("damaged_checkpoint_ignored", file=entry.file_name)
        return None

    def newest_iteration(self) -> int:
        """By the names alone; -1 if there is none."""
        return max((entry.iteration for entry in self._entries()[:1]), default=-1)

    def _remove_outdated(self) -> None:
        for outdated in self._entries()[_KEEP:]:
            (self._folder / outdated.file_name).unlink(missing_ok=True)
        for unfinished in self._folder.glob("g*.unfinished"):  # its writer was killed
            if unfinished.name < f"g{self._generation:010d}":
                unfinished.unlink(missing_ok=True)

    def _entries(self) -> list[_Entry]:
        """Newest first: by generation, then by iteration."""
        if not self._folder.is_dir():
            return []
        names = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted((_Entry(int(m[1]), int(m[2]), m[3]) for m in names if m), reverse=True)

    def _refuse_if_superseded(self) -> None:
        newer = max((entry.generation for entry in self._entries()), default=0)
        if newer > self._generation:
            raise Superseded(self._generation, newer)


def unreadable_types(value: Any) -> set[str]:
    """Types in a state that `state_of` would refuse to read back. Numbers and tensors are known to be fine."""
    match value:
        case None | bool() | int() | float() | str() if type(value) in _ALWAYS_READABLE:
            return set()
        case torch.Tensor() if type(value) in (torch.Tensor, torch.nn.Parameter):
            return set()
        case Mapping() if type(value) in (dict, OrderedDict):
            return unreadable_types([*value, *value.values()])
        case list() | tuple() if type(value) in (list, tuple):
            return set[str]().union(*map(unreadable_types, value))
        case _:
            return set() if _comes_back(value) else {_full_name(type(value))}


def _comes_back(value: Any) -> bool:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        state_of(buffer.getvalue())
    except Exception:  # pickle raises whatever the object does
        return False
    return True


def _full_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def state_of(content: bytes) -> dict[str, Any]:
    """What `save` was given; tensors on the CPU. Runs no code that may stand in the file."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def write_durably(path: Path, content: bytes) -> None:
    """The file with this content, or no file: it gets its name when its bytes are on the disk."""
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
