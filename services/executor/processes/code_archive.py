"""The code of jobs: fetched once per node, verified, and unpacked atomically into a folder."""

import asyncio
import errno
import hashlib
import io
import os
import tempfile
import time
import zipfile
from collections import defaultdict
from pathlib import Path

from elasticflow.shared.errors import DamagedObject, NotFound, Retry
from elasticflow.shared.messages.limits import MAX_ARCHIVE_BYTES, MAX_ARCHIVE_FILES
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.folder_tree import delete_folder

MAX_UNPACKED_BYTES = 1 << 30
UPLOAD_WAIT_S = 10.0  # for code that is still being uploaded when its job is placed
_RETRY_S = 0.2
_BOUNDED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # `zipfile` decompresses others without a bound
_FAULTS_OF_THE_NODE = {  # of its disk or its limits: another attempt may succeed
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
}


class CodeUnusable(Exception):
    """The code of this job cannot be used, now or later: the job fails with this message."""


class CodeArchive:
    """Folders code/<tenant>/<digest> in data_dir. Executors with one data_dir share them, tenants do not: the ledger
    tells everyone the digests of all."""

    def __init__(self, bus: Bus, pool: str, data_dir: Path, *, upload_wait_s: float = UPLOAD_WAIT_S) -> None:
        self._bus = bus
        self._bucket = streams.code_bucket(pool)
        self._root = data_dir / "code"
        self._upload_wait_s = upload_wait_s
        self._fetching: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def folder(self, tenant: str, digest: str) -> str:
        """The folder with this code, which the tenant has uploaded; "" for an empty digest. Raises CodeUnusable."""
        if not digest:
            return ""
        folder = self._root / tenant / digest
        async with self._fetching[tenant, digest]:
            if not await asyncio.to_thread(folder.is_dir):
                data = await self._fetch(tenant, digest)
                await asyncio.to_thread(_unpack, data, folder)
            await asyncio.to_thread(os.utime, folder)  # in use, so it is not deleted as old
        return str(folder)

    async def _fetch(self, tenant: str, digest: str) -> bytes:
        name = streams.code_name(tenant, digest)
        give_up_s = time.monotonic() + self._upload_wait_s
        while True:
            try:
                data = await self._bus.get_object(self._bucket, name, max_bytes=MAX_ARCHIVE_BYTES)
                break
            except NotFound:
                if time.monotonic() > give_up_s:
                    raise CodeUnusable(f"its code {digest} was not uploaded; submit it again") from None
            except DamagedObject as error:
                raise CodeUnusable(f"its code {digest} cannot be read: {error}") from None
            except Retry:  # NATS is out of reach: not the fault of the job
                give_up_s = time.monotonic() + self._upload_wait_s
            await asyncio.sleep(_RETRY_S)
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise CodeUnusable(f"its code {digest} is corrupt: the sha256 of the uploaded file is {found}")
        return data


def _unpack(data: bytes, folder: Path) -> None:
    """Unpack all files or none: the folder appears only when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-"))
    try:
        _check_entries(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:  # extractall keeps names inside the folder
            _check_bounds(archive)
            archive.extractall(unfinished)
        unfinished.chmod(0o755)
        _move(unfinished, folder)
    except Exception as error:  # a hostile archive can provoke any: zlib.error, LZMAError, a name that is too long
        if isinstance(error, OSError) and error.errno in _FAULTS_OF_THE_NODE:
            raise
        raise CodeUnusable(f"its code {folder.name} cannot be unpacked: {error}") from error
    finally:
        delete_folder(unfinished)


def _move(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another executor was faster, with the same files
            raise


def _check_entries(data: bytes) -> None:
    """Check the number of entries before `zipfile` makes an object of each.

    It reads as many as there are, whatever number the end record says.
    """
    count = data.count(b"PK\x01\x02")
    if count > MAX_ARCHIVE_FILES:
        raise ValueError(f"{count:,} entries are above {MAX_ARCHIVE_FILES:,}")


def _check_bounds(archive: zipfile.ZipFile) -> None:
    files = archive.infolist()
    for file in files:
        if file.compress_type not in _BOUNDED_METHODS:
            raise ValueError(f"{file.filename!r} has compression method {file.compress_type}; use stored or deflated")
    num_bytes = sum(file.file_size for file in files)
    if num_bytes > MAX_UNPACKED_BYTES or len(files) > MAX_ARCHIVE_FILES:
        raise ValueError(
            f"{len(files):,} files of {num_bytes:,} bytes are above {MAX_ARCHIVE_FILES:,} and {MAX_UNPACKED_BYTES:,}"
        )
