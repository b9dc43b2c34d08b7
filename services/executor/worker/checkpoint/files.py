"""Files of checkpoints: written to the disk with their SHA-256, read without running code from them."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch


def read_state(file: BinaryIO) -> dict[str, Any]:
    return torch.load(file, map_location="cpu", weights_only=True)


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
