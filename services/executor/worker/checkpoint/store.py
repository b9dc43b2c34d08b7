"""Checkpoints of one job: complete or absent, newest generation first, readable at any number of workers.

A file's name holds generation, iteration and the SHA-256 of its content. It gets this name only when it is complete and
on the disk; a file that does not match its name, or that another job wrote, is no checkpoint. A worker of an older
generation can neither overwrite nor outrank the checkpoint of a newer one. States are streamed to and from the disk, so
that no process holds their bytes in addition to their tensors.
"""

import hashlib
import io
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol

import torch

from elasticflow.services.executor.worker.checkpoint.files import (
    PartFiles,
    UnreadableFile,
    read_state,
    readable_state,
    write_state,
)
from elasticflow.shared.errors import Stop
from elasticflow.shared.runtime.process.files import open_regular_file, rename_durably
from elasticflow.shared.runtime.process.logs import log

_KEEP = 2  # an older one remains if the newest is damaged later
_ALWAYS_READABLE = (type(None), bool, int, float, str)
_NAME = re.compile(r"g(\d{10})-i(\d{14})-([0-9a-f]{64})\.ckpt")
_OWNER = "owner"  # a name in the state
_PART_LACKS = "a part of it is missing or damaged"


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
    """The place where one worker saves the state of its job."""

    def save(self, iteration: int, state: Mapping[str, Any]) -> Written | None:
        """Return what was written, or None if another worker completes the checkpoint. Raises Superseded, or OSError on
        a disk error."""
        ...

    def whole_model(self, iteration: int, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state dict of the model in the state that was just saved."""
        ...


class CheckpointStore:
    """The checkpoints in one folder, as one generation of the job sees them.

    owner: named in each file; a file that names another one is no checkpoint. "": files of any owner are. continued:
    jobs that this one continues, whose files count, too.
    unreadable: iteration and reason, by the name of each file that `newest` has passed over.
    """

    def __init__(
        self,
        folder: Path,
        *,
        generation: int,
        owner: str = "",
        continued: tuple[str, ...] = (),
        publish: Callable[[Path, Path], None] | None = None,
    ) -> None:
        self._folder = folder
        self._generation = generation
        self._owner, self._continued = owner, continued
        self._publish = publish or rename_durably
        self._invalid: dict[str, os.stat_result] = {}  # files of newer generations that are no checkpoints
        self.unreadable: dict[str, tuple[int, str]] = {}
        self.parts = PartFiles(folder, generation=generation)

    def save(self, iteration: int, state: Mapping[str, Any]) -> Written:
        """Raises Superseded, or OSError on a disk error; older checkpoints remain."""
        self._refuse_if_superseded()
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f"g{self._generation:010d}-i{iteration:014d}.{os.getpid()}.unfinished"
        try:
            digest = write_state(unfinished, {**state, _OWNER: self._owner} if self._owner else state)
            written = _Entry(self._generation, iteration, digest)
            file = self._folder / written.file_name
            num_bytes = unfinished.stat().st_size
            self._publish(unfinished, file)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        self._remove_outdated(written)
        return Written(file, num_bytes)

    def whole_model(self, iteration: int, state: Mapping[str, Any]) -> Mapping[str, Any]:
        del iteration
        return state["model"]

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
            try:
                whole = complete(self._content(entry))
                problem = _PART_LACKS
            except FileNotFoundError:  # its writer has replaced it by newer ones
                continue
            except UnreadableFile as error:
                whole, problem = None, error.reason
            if whole is not None:
                self.unreadable.pop(entry.file_name, None)
                return whole
            self.unreadable[entry.file_name] = entry.iteration, problem
            log.warning("damaged_checkpoint_ignored", file=entry.file_name, reason=problem)
        return None

    @property
    def has_damaged(self) -> bool:
        """Whether `newest` has found a file that no later look makes readable, unlike a part that may still appear."""
        return any(reason != _PART_LACKS for _, reason in self.unreadable.values())

    def has_written(self, iteration: int) -> bool:
        """Whether this generation has a complete checkpoint of at least this iteration."""
        own = (entry for entry in self._entries() if entry.generation == self._generation)
        return any(entry.iteration >= iteration and self._is_checkpoint(entry) for entry in own)

    def _content(self, entry: _Entry) -> dict[str, Any]:
        """Raises Unreadable, FileNotFoundError."""
        with self._matching_file(entry) as file:
            state = readable_state(file)
        owner = state.pop(_OWNER, self._owner)
        if self._owner and owner not in (self._owner, *self._continued):
            raise UnreadableFile(f"job {owner} wrote it")
        return state

    @contextmanager
    def _matching_file(self, entry: _Entry) -> Iterator[BinaryIO]:
        """Yield the file of an entry, open at its beginning. Raises Unreadable if its content does not match its name,
        or FileNotFoundError."""
        path = self._folder / entry.file_name
        try:
            with open_regular_file(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.digest:
                    raise UnreadableFile("its content does not match its name")
                file.seek(0)
                yield file
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnreadableFile(error.strerror or str(error)) from error

    def _is_checkpoint(self, entry: _Entry) -> bool:
        try:
            self._content(entry)
        except FileNotFoundError:
            return False
        except UnreadableFile as error:
            log.warning("damaged_checkpoint_ignored", file=entry.file_name, reason=error.reason)
            return False
        return True

    def _remove_outdated(self, written: _Entry) -> None:
        """Keep the one just written and those before it, _KEEP in all.

        A name proves nothing, so a file that seems to be newer takes the place of none. A file that cannot be removed
        costs space only.
        """
        until_now = [entry for entry in self._entries() if entry <= written]
        for outdated in until_now[_KEEP:]:
            with suppress(OSError):
                (self._folder / outdated.file_name).unlink(missing_ok=True)
        self.parts.remove_outdated([(entry.generation, entry.iteration) for entry in until_now[:_KEEP]])
        for unfinished in self._folder.glob("g*.unfinished"):  # its writer was killed
            if unfinished.name < f"g{self._generation:010d}":
                with suppress(OSError):
                    unfinished.unlink(missing_ok=True)

    def _entries(self) -> list[_Entry]:
        """The entries of this generation and older ones, newest first: by generation, then by iteration."""
        return [entry for entry in self._all_entries() if entry.generation <= self._generation]

    def _all_entries(self) -> list[_Entry]:
        try:
            names = [_NAME.fullmatch(name) for name in os.listdir(self._folder)]
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("checkpoints_not_listed", folder=str(self._folder), reason=str(error))
            self.unreadable[str(self._folder)] = 0, error.strerror or str(error)
            return []
        return sorted((_Entry(int(m[1]), int(m[2]), m[3]) for m in names if m), reverse=True)

    def newest_generation(self) -> int:
        """The newest generation of the checkpoints that are there; 0 if there is none."""
        return next((entry.generation for entry in self._all_entries() if self._is_checkpoint(entry)), 0)

    def _refuse_if_superseded(self) -> None:
        """A name proves nothing: only a complete checkpoint of a newer generation supersedes this one."""
        for entry in self._all_entries():
            if entry.generation > self._generation and not self._is_known_invalid(entry):
                raise Superseded(self._generation, entry.generation)

    def _is_known_invalid(self, entry: _Entry) -> bool:
        """Each file is read once, unless it changes."""
        with suppress(OSError):
            found, known = os.lstat(self._folder / entry.file_name), self._invalid.get(entry.file_name)
            if known is not None and (known.st_ino, known.st_size, known.st_mtime_ns) == (
                found.st_ino,
                found.st_size,
                found.st_mtime_ns,
            ):
                return True
            if self._is_checkpoint(entry):
                return False
            self._invalid[entry.file_name] = found
        return True


def unreadable_types(value: Any) -> set[str]:
    """Types in a state that could not be read back. Numbers and tensors are known to be readable."""
    match value:
        case None | bool() | int() | float() | str() if type(value) in _ALWAYS_READABLE:
            return set()
        case torch.Tensor() if type(value) in (torch.Tensor, torch.nn.Parameter) or hasattr(value, "to_local"):
            return set()  # also a tensor that a gang has divided: each of its workers stores its rows
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
