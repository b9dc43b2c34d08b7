"""The code of jobs: fetched once for each node, checked, unpacked into a folder that is whole or not there."""

import asyncio
import hashlib
import io
import shutil
import tempfile
import time
import zipfile
from collections import defaultdict
from pathlib import Path

from shared.errors import NotFound, Retry
from shared.runtime import streams
from shared.runtime.bus import Bus

MAX_UNPACKED_BYTES = 1 << 30
MAX_FILES = 50_000
UPLOAD_WAIT_S = 10.0  # for code that is still on its way when its job is placed
_RETRY_S = 0.2


class CodeUnusable(Exception):
    """No code for this job, now or later: the job fails with this sentence."""


class CodeArchive:
    """Folders by digest, below <data_dir>/code. Executors that share a data_dir share them too."""

    def __init__(self, bus: Bus, pool: str, data_dir: Path, *, upload_wait_s: float = UPLOAD_WAIT_S) -> None:
        self._bus = bus
        self._bucket = streams.code_bucket(pool)
        self._root = data_dir / "code"
        self._upload_wait_s = upload_wait_s
        self._fetching: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def folder(self, digest: str) -> str:
        """Where the code lies; "" for "", which needs none. Raises CodeUnusable."""
        if not digest:
            return ""
        folder = self._root / digest
        async with self._fetching[digest]:
            if not await asyncio.to_thread(folder.is_dir):
                data = await self._fetch(digest)
                await asyncio.to_thread(_unpack, data, folder)
        return str(folder)

    async def _fetch(self, digest: str) -> bytes:
        give_up_s = time.monotonic() + self._upload_wait_s
        while True:
            try:
                data = await self._bus.get_object(self._bucket, digest)
                break
            except NotFound:
                if time.monotonic() > give_up_s:
                    raise CodeUnusable(f"its code {digest} was never uploaded") from None
            except Retry:  # no server: nothing is wrong with the job
                give_up_s = time.monotonic() + self._upload_wait_s
            await asyncio.sleep(_RETRY_S)
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise CodeUnusable(f"its code {digest} is another file: its sha256 is {found}")
        return data


def _unpack(data: bytes, folder: Path) -> None:
    """All files or none: a folder of this name is never seen half full."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-"))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:  # extractall keeps names inside the folder
            _check_bounds(archive)
            archive.extractall(unfinished)
        unfinished.chmod(0o755)
        _move(unfinished, folder)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise CodeUnusable(f"its code {folder.name} is no archive that can be unpacked: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _move(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another executor was first, with the same files
            raise


def _check_bounds(archive: zipfile.ZipFile) -> None:
    files = archive.infolist()
    num_bytes = sum(file.file_size for file in files)
    if num_bytes > MAX_UNPACKED_BYTES or len(files) > MAX_FILES:
        raise ValueError(
            f"{len(files):,} files of {num_bytes:,} bytes are above {MAX_FILES:,} and {MAX_UNPACKED_BYTES:,}"
        )
