"""Checkpoints of one job: complete or absent, newest generation first, readable at any number of workers.

A file's name holds generation, iteration and the SHA-256 of its content. It gets this name only when it is complete and
on the disk; a file that does not match its name is no checkpoint. A worker of an older generation can neither overwrite
nor outrank the checkpoint of a newer one. States are streamed to and from the disk, so that no process holds their
bytes in addition to their tensors.
"""

import hashlib
import io
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import structlog
import torch

from elasticflow.services.executor.worker.checkpoint.files import read_state, write_state
from elasticflow.services.executor.worker.checkpoint.part_files import PartFiles
from elasticflow.shared.errors import Stop
from elasticflow.shared.runtime.process.durable_file import rename_durably

log = structlog.get_logger()

_KEEP = 2  # an older one remains if the newest is damaged later
_ALWAYS_READABLE = (type(None), bool, int, float, str)
_NAME = re.compile(r"g(\d{10})-i(\d{14})-([0-9a-f]{64})\.ckpt")


@dataclass(eq=False)
class Superseded(Stop):
    """A newer generation has written here, so this worker is obsolete."""

    generation: int
    newer: int

    MESSAGE: ClassVar[str] = "generation {generation} is superseded: generation {newer} has written a checkpoint"


Complete = Callable[[dict[str, Any]], dict[str, Any] | None]


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


class Checkpoints(Protocol):
    """Where one worker saves the state of its job."""

    def save(self, iteration: int, state: Mapping[str, Any]) -> Written | None:
        """None: another worker completes the checkpoint. Raises Superseded, or OSError on a disk error."""
        ...


class CheckpointStore:
    """The checkpoints in one folder, as one generation of the job sees them."""

    def __init__(
        self,
        folder: Path,
        *,
        generation: int,
        publish: Callable[[Path, Path], None] | None = None,
    ) -> None:
        self._folder = folder
        self._generation = generation
        self._publish = publish or rename_durably
        self.parts = PartFiles(folder, generation=generation)

    def save(self, iteration: int, state: Mapping[str, Any]) -> Written:
        """Raises Superseded, or OSError on a disk error; older checkpoints remain."""
        self._refuse_if_superseded()
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f"g{self._generation:010d}-i{iteration:014d}.{os.getpid()}.unfinished"
        try:
            digest = write_state(unfinished, state)
            file = self._folder / _Entry(self._generation, iteration, digest).file_name
            num_bytes = unfinished.stat().st_size
            self._publish(unfinished, file)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        self._remove_outdated()
        return Written(file, num_bytes)

    def newest(self, *, at_least: int = 0, complete: Complete | None = None) -> dict[str, Any] | None:
        """The state in the newest complete checkpoint of at least this iteration; tensors on the CPU.

        complete: adds what lies beside a file, or returns None if that is not there, so that an older one counts; by
        default all parts of an optimizer's state. Runs no code from the file. Raises Superseded.
        """
        complete = complete or self.parts.joined
        self._refuse_if_superseded()
        for entry in self._entries():
            if entry.iteration < at_least:
                continue
            with (self._folder / entry.file_name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == entry.digest:
                    file.seek(0)
                    if (state := complete(read_state(file))) is not None:
                        return state
            log.warning("damaged_checkpoint_ignored", file=entry.file_name)
        return None

    def newest_iteration(self) -> int:
        """According to file names; -1 if there is none."""
        return max((entry.iteration for entry in self._entries()[:1]), default=-1)

    def _remove_outdated(self) -> None:
        entries = self._entries()
        for outdated in entries[_KEEP:]:
            (self._folder / outdated.file_name).unlink(missing_ok=True)
        self.parts.remove_outdated([(entry.generation, entry.iteration) for entry in entries[:_KEEP]])
        for unfinished in self._folder.glob("g*.unfinished"):  # its writer was killed
            if unfinished.name < f"g{self._generation:010d}":
                unfinished.unlink(missing_ok=True)

    def _entries(self) -> list[_Entry]:
        """Newest first: by generation, then by iteration."""
        if not self._folder.is_dir():
            return []
        names = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted((_Entry(int(m[1]), int(m[2]), m[3]) for m in names if m), reverse=True)

    def newest_generation(self) -> int:
        """According to file names; 0 if there is none."""
        return max((entry.generation for entry in self._entries()), default=0)

    def _refuse_if_superseded(self) -> None:
        if (newer := self.newest_generation()) > self._generation:
            raise Superseded(self._generation, newer)


def unreadable_types(value: Any) -> set[str]:
    """Types in a state that could not be read back. Numbers and tensors are known to be readable."""
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
        buffer.seek(0)
        read_state(buffer)
    except Exception:  # pickle raises whatever the object does
        return False
    return True


def _full_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
