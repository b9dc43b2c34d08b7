"""Artifacts of jobs in a folder that fsspec reaches, such as a bucket: <folder>/<tenant>/<SHA-256 of the file>.

Instead of the pool's object store, for models that are too large for it (docs/adr/0065). Blocking.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, BinaryIO

from elasticflow.shared.extras import require_extra
from elasticflow.shared.runtime.process.clock import fresh_id

_PIECE_BYTES = 8 << 20
_WITHOUT_FOLDERS = {"s3", "s3a", "gs", "gcs", "abfs", "az"}  # protocols; making a folder would make its missing bucket


class ArtifactFolder:
    """uri: of the folder. Each call raises what the library for its protocol raises, ImportError if there is none."""

    def __init__(self, uri: str) -> None:
        require_extra("fsspec", "a folder of artifacts")
        from fsspec.core import url_to_fs  # an extra

        system: Any
        system, self._root = url_to_fs(uri.rstrip("/"))
        self._system = system
        protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
        self._has_folders = _WITHOUT_FOLDERS.isdisjoint(protocols)

    def write(self, tenant: str, digest: str, pieces: Iterable[bytes]) -> None:
        """The file appears whole or not at all: `pieces` may raise."""
        folder = f"{self._root}/{tenant}"
        unfinished = f"{folder}/{digest}.{fresh_id()}"
        if self._has_folders:
            self._system.makedirs(folder, exist_ok=True)
        try:
            with self._system.open(unfinished, "wb") as out:
                for piece in pieces:
                    out.write(piece)
        except BaseException:
            with suppress(FileNotFoundError):
                self._system.rm_file(unfinished)
            raise
        self._system.mv(unfinished, f"{folder}/{digest}")

    def read(self, tenant: str, digest: str, out: BinaryIO) -> None:
        """Raises FileNotFoundError."""
        with self._system.open(f"{self._root}/{tenant}/{digest}", "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                out.write(piece)

    def delete_older(self, than_s: float) -> int:
        """Delete what was written before this time; the number of files."""
        if not self._system.exists(self._root):
            return 0
        self._system.invalidate_cache()
        old = [path for path in self._system.find(self._root) if self._system.modified(path).timestamp() < than_s]
        for path in old:
            with suppress(FileNotFoundError):  # another node was faster
                self._system.rm_file(path)
        return len(old)
