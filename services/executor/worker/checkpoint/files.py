"""Files of checkpoints: written to the disk with their SHA-256, read without running code from them."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch


@dataclass(eq=False)
class Unreadable(Exception):
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
        raise Unreadable(f"it cannot be loaded: {type(error).__name__}: {reason}") from error
    if not isinstance(state, dict):
        raise Unreadable(f"it holds {type(state).__name__}, not a state")
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
