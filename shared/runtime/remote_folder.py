"""Folders that fsspec reaches, such as buckets: of artifacts, and of checkpoints. Blocking."""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, BinaryIO

from elasticflow.shared.extras import require_extra
from elasticflow.shared.runtime.process.clock import fresh_id

_PIECE_BYTES = 8 << 20
_IS_ARTIFACT = re.compile(r"^[^/]+/[0-9a-f]{64}(\.[^/]+)?$")  # below the folder, also while it is written
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "az"}  # protocols: a file appears once it is closed


class RemoteFolder:
    """A folder by its URI. Each call raises what the library for its protocol raises, ImportError if there is none."""

    def __init__(self, uri: str) -> None:
        require_extra("fsspec", "a folder at a URI")
        from fsspec.core import url_to_fs  # an extra

        system: Any
        system, self._root = url_to_fs(uri.rstrip("/"))
        self.uri, self._system = uri, system
        protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
        self._is_object_store = not _OBJECT_STORES.isdisjoint(protocols)

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """The file appears whole or not at all: `pieces` may raise."""
        target = f"{self._root}/{path}"
        if self._is_object_store:
            self._put(target, pieces)
        else:
            self._rename(target, pieces)

    def _put(self, target: str, pieces: Iterable[bytes]) -> None:
        """Make no folder: its missing bucket would be made. Rename nothing: the store would copy the file."""
        out = self._system.open(target, "wb")
        try:
            for piece in pieces:
                out.write(piece)
            out.close()
        except BaseException as error:
            with suppress(Exception):  # the first error counts
                out.discard()
            out.closed = True  # or the file, when it is collected, would store what it has
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(f"{self.uri}: its bucket does not exist: {error}") from error
            raise

    def _rename(self, target: str, pieces: Iterable[bytes]) -> None:
        self._system.makedirs(target.rpartition("/")[0], exist_ok=True)
        unfinished = f"{target}.{fresh_id()}"
        try:
            with self._system.open(unfinished, "wb") as out:
                for piece in pieces:
                    out.write(piece)
        except BaseException:
            with suppress(FileNotFoundError):
                self._system.rm_file(unfinished)
            raise
        self._system.mv(unfinished, target)

    def read(self, path: str, out: BinaryIO) -> None:
        """Raises FileNotFoundError."""
        with self._system.open(f"{self._root}/{path}", "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                out.write(piece)

    def files(self, below: str = "") -> list[str]:
        """The paths of all files in this folder of it, as they are now; none if there is no such folder."""
        self._system.invalidate_cache()
        top = f"{self._root}/{below}".rstrip("/")
        if not self._system.exists(top):
            return []
        return sorted(path.removeprefix(f"{self._root}/") for path in self._system.find(top))

    def modified_s(self, path: str) -> float:
        """In seconds since 1970."""
        return self._system.modified(f"{self._root}/{path}").timestamp()

    def delete(self, path: str) -> None:
        """Another node may have been faster."""
        with suppress(FileNotFoundError):
            self._system.rm_file(f"{self._root}/{path}")


class ArtifactFolder:
    """Artifacts of jobs at <tenant>/<SHA-256 of the file>, instead of the pool's object store, for models that are too
    large for it (docs/adr/0065). Raises as RemoteFolder does."""

    def __init__(self, uri: str) -> None:
        self._folder = RemoteFolder(uri)

    def write(self, tenant: str, digest: str, pieces: Iterable[bytes]) -> None:
        """The file appears whole or not at all: `pieces` may raise."""
        self._folder.write(f"{tenant}/{digest}", pieces)

    def read(self, tenant: str, digest: str, out: BinaryIO) -> None:
        """Raises FileNotFoundError."""
        self._folder.read(f"{tenant}/{digest}", out)

    def delete_older(self, than_s: float) -> int:
        """Delete artifacts, and what is left of unfinished ones, older than this time; return the number of files.

        Any other file stays: the folder may also have another use.
        """
        ours = [path for path in self._folder.files() if _IS_ARTIFACT.search(path)]
        old = [path for path in ours if self._folder.modified_s(path) < than_s]
        for path in old:
            self._folder.delete(path)
        return len(old)


# --- Whether a library found no credentials for a storage, and which variables it reads ----------------

_NAMES = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")  # botocore, google.auth
_TEXTS = (
    "Unable to locate credentials",
    "Anonymous caller does not have",
)  # botocore; Google, which gcsfs asks even so
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_SECRETS = {  # of a job, which runs on another machine: they name no file
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": 'FSSPEC_GS (a JSON object: its "token" is the key of a service account)',
}
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


def lacks_credentials(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, says that there are none."""
    while error is not None:
        if type(error).__name__ in _NAMES or any(text in str(error) for text in _TEXTS):
            return True
        error = error.__cause__
    return False


def credential_variables(uri: str) -> str:
    """What the library for its protocol reads, as words; without a name if that is not known."""
    return _VARIABLES.get(_storage(uri), "the variables that the library of its protocol reads")


def credential_secrets(uri: str) -> str:
    """What a job passes with `--secret`, as words."""
    return _SECRETS.get(_storage(uri), credential_variables(uri))


def _storage(uri: str) -> str:
    protocol = uri.partition("://")[0]
    return _ALIASES.get(protocol, protocol)
