"""Files of checkpoints: written to the disk with their SHA-256, read without running code from them."""

import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from elasticflow.services.executor.worker.checkpoint.parameter_slices import whole_state
from elasticflow.shared.messages.worker_protocol.from_worker import MODEL_FOLDER, model_file_name
from elasticflow.shared.runtime.process.files import rename_durably
from elasticflow.shared.runtime.process.logs import log


@dataclass(eq=False)
class UnreadableFile(Exception):
    """A file is no checkpoint of this job, nor a part of one."""

    reason: str


def read_state(file: BinaryIO) -> dict[str, Any]:
    return torch.load(file, map_location="cpu", weights_only=True)


def readable_state(file: BinaryIO) -> dict[str, Any]:
    """Raises Unreadable, or OSError on a disk error."""
    try:
        state = read_state(file)
    except OSError:
        raise
    except Exception as error:  # the loader raises whatever the bytes lead to
        reason = (str(error).splitlines() or [""])[0][:200]
        raise UnreadableFile(f"it cannot be loaded: {type(error).__name__}: {reason}") from error
    if not isinstance(state, dict):
        raise UnreadableFile(f"it holds {type(state).__name__}, not a state")
    return cast(dict[str, Any], state)


def write_state(path: Path, state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the bytes once they are on the disk."""
    with path.open("wb") as file:
        stream = _Hashed(file)
        torch.save(dict(state), cast(BinaryIO, stream))
        if stream.error is not None:
            raise stream.error
        os.fsync(file.fileno())
    return stream.digest.hexdigest()


class _Hashed:
    """The file that torch.save writes to.

    error: the first disk error; nothing is written after it. torch replaces it by an error that does not name the disk.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self.error: OSError | None = None
        self._file = file

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self._unless_failed(lambda: self._file.write(content))
        return len(content)

    def flush(self) -> None:
        self._unless_failed(self._file.flush)

    def _unless_failed(self, do: Callable[[], object]) -> None:
        if self.error is None:
            try:
                do()
            except OSError as error:
                self.error = error


# --- part files ----------------------------------------------------------------------------------------
# Parts of a sharded optimizer's state on the disk: each worker writes its own, and one checkpoint names them all.
#
# A part's name holds generation, iteration, rank and the SHA-256 of its content. The checkpoint is written once all
# parts are there. One whose parts are missing or damaged is no checkpoint.

_NAME = re.compile(r"g(\d{10})-i(\d{14})-p(\d{5})-([0-9a-f]{64})\.part")
_POLL_S = 0.05


class PartFiles:
    """The part files in one folder, as one generation of the job sees them."""

    def __init__(self, folder: Path, *, generation: int) -> None:
        self._folder = folder
        self._generation = generation

    def write(self, iteration: int, rank: int, part: Mapping[str, Any]) -> None:
        """Raises OSError on a disk error."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"g{self._generation:010d}-i{iteration:014d}-p{rank:05d}"
        unfinished = self._folder / f"{name}.{os.getpid()}.unfinished"
        try:
            digest = write_state(unfinished, part)
            rename_durably(unfinished, self._folder / f"{name}-{digest}.part")
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def await_all(self, iteration: int, num_workers: int, *, within_s: float) -> list[Path]:
        """One part of each worker, by rank. Raises TimeoutError."""
        deadline_s = time.monotonic() + within_s
        while True:
            found = {rank: path for path, key, rank in self._parts() if key == (self._generation, iteration)}
            if len(found) == num_workers:
                return [found[rank] for rank in range(num_workers)]
            if time.monotonic() > deadline_s:
                missing = ", ".join(str(rank) for rank in range(num_workers) if rank not in found)
                raise TimeoutError(f"the parts of ranks {missing} are not in {self._folder} after {within_s:.0f} s")
            time.sleep(_POLL_S)

    def read(self, names: Sequence[str]) -> list[dict[str, Any]] | None:
        """Return the parts with these names, or None if one is missing or damaged. Runs no code from the files."""
        parts: list[dict[str, Any]] = []
        for name in names:
            path, found = self._folder / name, _NAME.fullmatch(name)
            if found is None or not path.is_file():
                log.warning("checkpoint_part_missing", file=name)
                return None
            try:
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != found[4]:
                        raise UnreadableFile("its content does not match its name")
                    file.seek(0)
                    parts.append(readable_state(file))
            except (OSError, UnreadableFile) as error:
                log.warning("damaged_checkpoint_ignored", file=name, reason=str(error))
                return None
        return parts

    def joined(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """The state with the whole state of its optimizer; None if a part is missing or damaged."""
        if not (names := part_names(state)):
            return state
        parts = self.read(names)
        return None if parts is None else {**state, "optimizer": whole_state(parts)}

    def remove_outdated(self, kept: Collection[tuple[int, int]]) -> None:
        """Remove parts that belong to no kept checkpoint and are older than the newest one. kept: generation and
        iteration of each."""
        for path, key, _ in self._parts():
            if key not in kept and key < max(kept, default=key):
                with suppress(OSError):  # it costs space only
                    path.unlink(missing_ok=True)

    def _parts(self) -> list[tuple[Path, tuple[int, int], int]]:
        """Path, generation with iteration, rank."""
        if not self._folder.is_dir():
            return []
        matches = ((path, _NAME.fullmatch(path.name)) for path in self._folder.iterdir())
        return [(path, (int(m[1]), int(m[2])), int(m[3])) for path, m in matches if m]


def part_names(state: Mapping[str, Any]) -> Sequence[str]:
    """Files with the parts of a checkpoint's optimizer state, by rank; none if it has all of it."""
    return state.get("optimizer", {}).get("parts", ())


# --- model file ----------------------------------------------------------------------------------------
# The model alone, in a file beside the checkpoints: what the executor stores for users (docs/adr/0065).
#
# The executor does not read checkpoints: that needs torch, and they come from users' code.


def write_model(checkpoint_dir: Path, iteration: int, model: Mapping[str, Any]) -> None:
    """Replace the file with this state dict. A full disk loses the file, not the job: its checkpoint is written."""
    folder = checkpoint_dir / MODEL_FOLDER
    unfinished = folder / f"{os.getpid()}.unfinished"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / model_file_name(iteration, write_state(unfinished, model))
        rename_durably(unfinished, file)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        log.warning("model_not_written", iteration=iteration, reason=str(error))
        return
    for other in folder.iterdir():
        if other != file:
            with suppress(OSError):  # a folder, say
                other.unlink(missing_ok=True)
